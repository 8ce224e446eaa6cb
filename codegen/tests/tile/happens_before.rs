//! What one clock of the emulator knows of another.

use crate::clocks::{Clock, Epoch};

fn step(rank: u16, launch: u32, phase: u32, item: u32, step: u32) -> Epoch {
    Epoch {
        rank,
        role: 0,
        launch,
        phase,
        item,
        step,
    }
}

#[test]
fn a_later_layer_implies_the_earlier_ones() {
    let mut clock = Clock::new(2, 1);
    clock.learn(&step(1, 0, 2, 40, 7));
    assert!(clock.covers(&step(1, 0, 2, 40, 7)));
    assert!(!clock.covers(&step(1, 0, 2, 40, 8)));
    assert!(!clock.covers(&step(1, 0, 2, 41, 0)));
    assert!(clock.covers(&step(1, 0, 1, 99, 9)));
    assert!(!clock.covers(&step(1, 0, 3, 0, 0)));
    assert!(!clock.covers(&Epoch::host(1, 1)));
    clock.start_launch(1, 1);
    assert!(clock.covers(&step(1, 0, 9, 9, 9)));
    assert!(clock.covers(&Epoch::host(1, 1)));
    assert!(!clock.covers(&step(1, 1, 0, 0, 0)));
}

#[test]
fn a_join_unites_items_of_one_phase_and_keeps_the_later_phase() {
    let (mut a, mut b) = (Clock::new(1, 1), Clock::new(1, 1));
    a.learn(&step(0, 0, 1, 3, 3));
    b.learn(&step(0, 0, 1, 70, 5));
    a.join(&b);
    assert!(a.covers(&step(0, 0, 1, 3, 3)) && a.covers(&step(0, 0, 1, 70, 5)));
    b.learn(&step(0, 0, 2, 80, 6));
    assert!(!b.covers(&step(0, 0, 2, 3, 3)));
    a.join(&b);
    assert!(a.covers(&step(0, 0, 1, 50, 0)));
    assert!(a.covers(&step(0, 0, 2, 80, 6)) && !a.covers(&step(0, 0, 2, 81, 6)));
}
