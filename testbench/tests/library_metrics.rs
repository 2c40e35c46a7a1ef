//! The metrics of a client. In a separate process, because a process has one recorder.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};
use palisade::engine::memory::{Config, Memory};
use palisade::{Options, Palisade};
use palisade_testbench::bounded::{BOUND, check};
use palisade_testbench::faulty_engine::{Call, Cut, EngineFaults};

/// How often each metric was recorded, by name and engine.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<HashMap<String, u64>>>);

impl Recorded {
    fn all(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, name: &str) -> u64 {
        self.all().get(&format!("{name} memory")).copied().unwrap_or(0)
    }

    fn cell(&self, key: &Key) -> Arc<Cell> {
        let engine = key.labels().find(|label| label.key() == "engine").map(|label| label.value().to_owned());
        let name = format!("{} {}", key.name(), engine.unwrap_or_default());
        Arc::new(Cell { recorded: self.clone(), name })
    }
}

struct Cell {
    recorded: Recorded,
    name: String,
}

impl Cell {
    fn add(&self, count: u64) {
        *self.recorded.all().entry(self.name.clone()).or_default() += count;
    }
}

impl CounterFn for Cell {
    fn increment(&self, count: u64) {
        self.add(count);
    }

    fn absolute(&self, _: u64) {
        panic!("what happened is counted, not set");
    }
}

impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        assert!(value.is_finite() && value >= 0.0, "{} is {value}", self.name);
        self.add(1);
    }
}

impl metrics::Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.cell(key))
    }
}

async fn client(faults: &EngineFaults, ttl: Duration) -> Palisade {
    let faults = faults.clone();
    let connect =
        async move || Ok(faults.wrap(Box::new(Memory::connect(&Config { name: Some("metrics".to_owned()) }))));
    Options::new().ttl(ttl).connect_engine("faulty_engine", connect).await.expect("a client")
}

#[test]
fn grants_waits_losses_and_renewals_are_counted() {
    let recorded = Recorded::default();
    assert!(metrics::set_global_recorder(recorded.clone()).is_ok(), "there is no other recorder");
    check(BOUND, async {
        let faults = EngineFaults::default();
        let alice = client(&EngineFaults::default(), Duration::from_secs(3600)).await;
        // It outlives a standstill of ten seconds until its connection is cut.
        let bob = client(&faults, Duration::from_secs(18)).await;

        let held = alice.lock("lock").acquire().await.expect("it is free");
        assert!(bob.lock("lock").try_acquire().await.expect("an answer").is_none());
        assert_eq!((recorded.of("palisade_grants_total"), recorded.of("palisade_wait_seconds")), (1, 1));

        let waiter = tokio::spawn(bob.lock("lock").acquire());
        faults.until_begun(Call::Acquire, 2).await;
        held.release().await.expect("it is held");
        let held = waiter.await.expect("no panic").expect("its turn comes");
        assert_eq!((recorded.of("palisade_grants_total"), recorded.of("palisade_wait_seconds")), (2, 2));

        assert_eq!(recorded.of("palisade_losses_total"), 0);
        alice.force_release("lock", "a test").await.expect("it is held");
        held.lost().await;
        assert_eq!(recorded.of("palisade_losses_total"), 1);

        let held = bob.lock("lock").acquire().await.expect("it is free");
        let begun = faults.begun(Call::KeepAlive);
        faults.until_begun(Call::KeepAlive, begun + 2).await;
        assert!(recorded.of("palisade_renew_lag_seconds") > 0);
        assert_eq!(recorded.of("palisade_session_losses_total"), 0);
        faults.cut(Cut::Failing);
        held.lost().await;
        faults.mend();
        // The new session is there, so the loss of the old one is counted.
        bob.lock("other").acquire().await.expect("it is free");
        assert_eq!(recorded.of("palisade_session_losses_total"), 1);
    });
}
