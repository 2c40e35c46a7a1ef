//! Untrusted bytes: they are refused with a reason, or restore to a machine whose invariants hold.
//!
//! `PROPTEST_CASES=100000 cargo test --release -p palisade-core --test machine snapshots` tries many more cases; the
//! seeds of failures are kept in `snapshots.proptest-regressions`.

use crate::common::observed::Observed;
use crate::common::steps::{Resolver, Step, limits, steps};
use palisade_core::{Command, Limits, Machine, RestoreError, SNAPSHOT_VERSION, invariant};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;

/// The magic word, the version and the checksum.
const HEADER: usize = 16;

/// Returns the configuration of a test with this many cases, unless `PROPTEST_CASES` is set.
fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    let seeds = FileFailurePersistence::Direct("tests/machine/snapshots.proptest-regressions");
    ProptestConfig { failure_persistence: Some(Box::new(seeds)), ..config }
}

fn machine_after(limits: &Limits, steps: &[Step]) -> Machine {
    let mut machine = Machine::new(limits.clone());
    let mut resolver = Resolver::new(&machine);
    for step in steps {
        let applied = machine.apply(resolver.command(step));
        resolver.learn(&applied, Observed::of(&machine));
    }
    machine
}

/// Corrects the checksum, as an attacker would.
fn sign(bytes: &mut [u8]) {
    let checksum = crc32fast::hash(&bytes[HEADER..]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
}

/// Asserts that a restored machine keeps its invariants under further commands.
fn assert_keeps_invariants(mut machine: Machine, steps: &[Step]) {
    assert_eq!(invariant::check(&machine), Ok(()));
    let restored = Machine::restore(&machine.snapshot()).expect("its own snapshot");
    assert!(restored.snapshot() == machine.snapshot());
    let mut resolver = Resolver::new(&machine);
    for step in steps {
        let applied = machine.apply(resolver.command(step));
        assert_eq!(invariant::check(&machine), Ok(()));
        resolver.learn(&applied, Observed::of(&machine));
    }
    for session in Observed::of(&machine).sessions.into_keys() {
        machine.apply(Command::CloseSession { session });
    }
    assert_eq!(invariant::check(&machine), Ok(()));
}

fn restore_error(bytes: &[u8]) -> Option<RestoreError> {
    Machine::restore(bytes).err()
}

#[test]
fn a_snapshot_begins_with_its_magic_number_and_version() {
    let bytes = Machine::new(Limits::default()).snapshot();
    assert_eq!(&bytes[..8], b"PALISADE");
    assert_eq!(bytes[8..12], SNAPSHOT_VERSION.to_le_bytes());
}

#[test]
fn a_snapshot_with_exhausted_counters_is_refused() {
    let limits = Limits::default();
    let bytes = Machine::new(limits.clone()).snapshot();
    let counters = HEADER + postcard::to_stdvec(&limits).unwrap().len();
    for at in counters..counters + 3 {
        let mut forged = bytes.clone();
        forge(&mut forged, at - HEADER, &Forgery::Huge);
        sign(&mut forged);
        assert!(matches!(restore_error(&forged), Some(RestoreError::Damaged { .. })), "counter at byte {at}");
    }
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn a_snapshot_with_any_byte_changed_is_refused(
        limits in limits(), steps in steps(50), at in any::<Index>(), change in 1u8..,
    ) {
        let mut bytes = machine_after(&limits, &steps).snapshot();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let refused = restore_error(&bytes).expect("refused");
        match at {
            0..8 => prop_assert_eq!(refused, RestoreError::NotASnapshot),
            8..12 => assert!(matches!(refused, RestoreError::UnknownVersion { .. })),
            _ => assert!(matches!(refused, RestoreError::Damaged { .. })),
        }
    }

    #[test]
    fn a_truncated_or_extended_snapshot_is_refused(
        limits in limits(), steps in steps(50), more in vec(any::<u8>(), 1..20), signed in any::<bool>(),
    ) {
        let bytes = machine_after(&limits, &steps).snapshot();
        for length in 0..bytes.len() {
            let mut short = bytes[..length].to_vec();
            if signed && length >= HEADER {
                sign(&mut short);
            }
            match restore_error(&short).expect("refused") {
                RestoreError::NotASnapshot => prop_assert!(length < HEADER),
                refused => assert!(matches!(refused, RestoreError::Damaged { .. })),
            }
        }
        let mut long = [bytes, more].concat();
        if signed {
            sign(&mut long);
        }
        let refused = restore_error(&long).expect("refused");
        assert!(matches!(refused, RestoreError::Damaged { .. }));
    }

    #[test]
    fn an_unknown_version_is_refused_by_its_number(version in any::<u32>(), rest in vec(any::<u8>(), 4..100)) {
        prop_assume!(version != SNAPSHOT_VERSION);
        let bytes = [&b"PALISADE"[..], &version.to_le_bytes(), &rest].concat();
        prop_assert_eq!(restore_error(&bytes), Some(RestoreError::UnknownVersion { found: version }));
    }
}

proptest! {
    #![proptest_config(config(1500))]

    #[test]
    fn a_forged_snapshot_is_refused_or_makes_a_sound_machine(
        limits in limits(), before in steps(25), after in steps(12), forgeries in vec((any::<Index>(), forgery()), 1..4),
    ) {
        let mut bytes = machine_after(&limits, &before).snapshot();
        for (at, forgery) in &forgeries {
            forge(&mut bytes, at.index(1 << 20), forgery);
        }
        sign(&mut bytes);
        if let Ok(machine) = Machine::restore(&bytes) {
            assert_keeps_invariants(machine, &after);
        }
    }

    #[test]
    fn any_bytes_at_all_are_refused_or_make_a_sound_machine(body in vec(any::<u8>(), 0..300), signed in any::<bool>()) {
        prop_assert!(restore_error(&body).is_some());
        let mut bytes = [&b"PALISADE"[..], &SNAPSHOT_VERSION.to_le_bytes(), &[0; 4], &body].concat();
        if signed {
            sign(&mut bytes);
        }
        if let Ok(machine) = Machine::restore(&bytes) {
            assert_keeps_invariants(machine, &[]);
        }
    }

    #[test]
    fn any_bytes_that_read_as_a_command_can_be_applied(
        limits in limits(), steps in steps(12), kind in 0u8..14, rest in vec(prop_oneof![0u8..4, any::<u8>()], 0..60),
    ) {
        let mut machine = machine_after(&limits, &steps);
        let bytes = [&[kind][..], &rest].concat();
        if let Ok((command, _)) = postcard::take_from_bytes::<Command>(&bytes) {
            machine.apply(command.clone());
            prop_assert_eq!(invariant::check(&machine), Ok(()));
            machine.apply(command);
            prop_assert_eq!(invariant::check(&machine), Ok(()));
        }
    }

    #[test]
    fn a_command_with_bytes_changed_can_be_applied(
        limits in limits(), steps in steps(25), changes in vec((any::<Index>(), forgery()), 1..4),
    ) {
        let mut machine = Machine::new(limits.clone());
        let mut resolver = Resolver::new(&machine);
        for step in &steps {
            let command = resolver.command(step);
            let mut bytes = postcard::to_stdvec(&command).expect("written");
            for (at, forgery) in &changes {
                forge(&mut bytes, at.index(1 << 20), forgery);
            }
            if let Ok((odd, _)) = postcard::take_from_bytes::<Command>(&bytes) {
                machine.apply(odd);
                prop_assert_eq!(invariant::check(&machine), Ok(()));
            }
            let applied = machine.apply(command);
            prop_assert_eq!(invariant::check(&machine), Ok(()));
            resolver.learn(&applied, Observed::of(&machine));
        }
    }
}

/// A change to some bytes.
#[derive(Debug, Clone)]
enum Forgery {
    /// A slightly different number.
    Add(u8),
    Set(u8),
    /// One byte more or less, so that all following fields shift.
    Insert(u8),
    Remove,
    /// The largest number.
    Huge,
    /// Bytes from another offset.
    Copy(Index),
}

fn forgery() -> BoxedStrategy<Forgery> {
    prop_oneof![
        4 => prop_oneof![Just(1u8), Just(255)].prop_map(Forgery::Add),
        4 => prop_oneof![Just(0u8), Just(1), 2u8..9].prop_map(Forgery::Set),
        2 => any::<u8>().prop_map(Forgery::Set),
        1 => any::<u8>().prop_map(Forgery::Insert),
        1 => Just(Forgery::Remove),
        2 => Just(Forgery::Huge),
        3 => any::<Index>().prop_map(Forgery::Copy),
    ]
    .boxed()
}

/// Changes the bytes after the header of a snapshot; a command has no header.
fn forge(bytes: &mut Vec<u8>, at: usize, forgery: &Forgery) {
    let start = if bytes.starts_with(b"PALISADE") { HEADER } else { 0 };
    if bytes.len() <= start {
        return;
    }
    let at = start + at % (bytes.len() - start);
    match forgery {
        Forgery::Add(by) => bytes[at] = bytes[at].wrapping_add(*by),
        Forgery::Set(to) => bytes[at] = *to,
        Forgery::Insert(byte) => bytes.insert(at, *byte),
        Forgery::Remove => drop(bytes.remove(at)),
        Forgery::Huge => {
            // The longest encoding of 2^64 - 1, in place of whatever number ends here.
            let end = (at..bytes.len()).find(|at| bytes[*at] < 0x80).unwrap_or(at);
            bytes.splice(at..=end, [[0xff; 9].as_slice(), &[1]].concat());
        }
        Forgery::Copy(from) => bytes[at] = bytes[start + from.index(bytes.len() - start)],
    }
}
