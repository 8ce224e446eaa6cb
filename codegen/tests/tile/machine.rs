//! A machine's numbers beside those that were measured.

use counterflow_codegen::model::Machine;

#[test]
fn clusters_share_the_sms_that_are_left() {
    let machine = Machine::h200();
    assert_eq!(machine.clusters[0], machine.sms);
    let room = |ctas| machine.clusters(ctas, machine.sms);
    assert_eq!([1, 2, 3, 4, 8].map(room), [132, 66, 39, 30, 15]);
    assert_eq!([3, 4, 8].map(|sms| machine.clusters(4, sms)), [0, 1, 1]);
}

#[test]
fn link_rates_are_those_measured() {
    let machine = Machine::h200();
    let near = |what: f64, measured: f64| {
        let ratio = what / (measured * 1e9);
        assert!(
            (0.94..1.07).contains(&ratio),
            "{what} is not {measured} GB/s"
        );
    };
    for (kib, measured) in [
        (64, 7.6),
        (256, 27.0),
        (1024, 89.0),
        (4096, 224.0),
        (16384, 318.0),
    ] {
        near(machine.copy_engine_rate(f64::from(kib) * 1024.0), measured);
    }
    for (ctas, measured) in [(1, 46.0), (2, 91.0), (4, 182.0), (8, 348.0), (132, 350.0)] {
        near(machine.push_rate(ctas), measured);
    }
}
