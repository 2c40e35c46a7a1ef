//! The search for a smaller world that fails, too.

use std::time::Duration;

use super::{Outcome, Plan, run};

/// Returns a smaller plan that fails, and its outcome: fewer clients, fewer faults, shorter, fewer machines.
pub fn shrink(plan: &Plan) -> (Plan, Outcome) {
    let mut best = (plan.clone(), run(plan, false));
    if best.1.failure.is_none() {
        return best;
    }
    // Nothing after the failure matters.
    let mut is_smaller = true;
    while is_smaller {
        is_smaller = false;
        for smaller in candidates(&best.0, &best.1) {
            let outcome = run(&smaller, false);
            if outcome.failure.is_some() {
                best = (smaller, outcome);
                is_smaller = true;
                break;
            }
        }
    }
    best
}

fn candidates(plan: &Plan, outcome: &Outcome) -> Vec<Plan> {
    let mut smaller = Vec::new();
    let mut add = |change: Plan| {
        if change != *plan {
            smaller.push(change);
        }
    };
    for clients in [1, 2, plan.clients / 2, plan.clients.saturating_sub(1)] {
        if (1..plan.clients).contains(&clients) {
            add(Plan { clients, ..plan.clone() });
        }
    }
    let faults = outcome.faults.min(plan.faults);
    for faults in [0, faults / 2, faults * 3 / 4, faults.saturating_sub(1)] {
        if faults < plan.faults && faults < outcome.faults {
            add(Plan { faults, ..plan.clone() });
        }
    }
    for seconds in [plan.duration.as_secs() / 2, plan.duration.as_secs() * 3 / 4] {
        if (1..plan.duration.as_secs()).contains(&seconds) {
            add(Plan { duration: Duration::from_secs(seconds), ..plan.clone() });
        }
    }
    if plan.spares > 0 {
        add(Plan { spares: plan.spares - 1, ..plan.clone() });
    }
    smaller
}
