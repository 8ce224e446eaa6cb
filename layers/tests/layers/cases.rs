//! Layers that must all have the same numbers.

use counterflow_layers::LinearConfig;
use counterflow_layers::overlap::{Flags, Parallel};

/// Features over all ranks, which worlds of 1 to 4 divide.
pub const FEATURES: [usize; 2] = [96, 192];

pub struct Case {
    pub name: &'static str,
    pub config: &'static str,
    pub layer: LinearConfig,
}

pub const NONE: Flags = Flags {
    ub_overlap_ag: false,
    ub_overlap_rs: false,
    ub_overlap_rs_dgrad: false,
    ub_bulk_dgrad: false,
    ub_bulk_wgrad: false,
};

/// TransformerLayer's defaults.
pub const USUAL: Flags = Flags {
    ub_overlap_ag: true,
    ub_overlap_rs: true,
    ub_bulk_dgrad: true,
    ub_bulk_wgrad: true,
    ..NONE
};

pub const RS_DGRAD: Flags = Flags {
    ub_overlap_rs_dgrad: true,
    ..USUAL
};

pub fn of(parallel: Parallel) -> Vec<Case> {
    match parallel {
        Parallel::Column => column(),
        Parallel::Row => row(),
    }
}

fn column() -> Vec<Case> {
    let case = |name, config, flags, change: fn(&mut LinearConfig)| {
        let mut layer = LinearConfig::column(FEATURES[0], FEATURES[1]);
        layer.ub_name = Some("fc1".into());
        layer.flags = flags;
        change(&mut layer);
        Case {
            name,
            config,
            layer,
        }
    };
    let only_dgrad = Flags {
        ub_bulk_wgrad: false,
        ..USUAL
    };
    let only_wgrad = Flags {
        ub_bulk_dgrad: false,
        ..USUAL
    };
    let bias = |layer: &mut LinearConfig| layer.bias = true;
    let kept = |layer: &mut LinearConfig| layer.keep_gathered = true;
    let frozen = |layer: &mut LinearConfig| layer.frozen = true;
    let ring = "fc1_fprop: {use_ce: 0, num_sm: 2}";
    let rings = "fc1_fprop: {use_ce: 0, aggregate: 1}";
    vec![
        case("nothing overlapped", "", NONE, |_| {}),
        case("nothing overlapped, a bias", "", NONE, bias),
        case("the usual", "", USUAL, |_| {}),
        case("the usual, a bias", "", USUAL, bias),
        case("only dgrad in bulk", "", only_dgrad, |_| {}),
        case("only wgrad in bulk", "", only_wgrad, |_| {}),
        case(
            "dgrad summed",
            "fc1_dgrad: {method: pipeline}",
            RS_DGRAD,
            bias,
        ),
        case(
            "dgrad summed, kept",
            "fc1_dgrad: {method: auto}",
            RS_DGRAD,
            kept,
        ),
        case("kept", "", USUAL, kept),
        case("frozen", "", USUAL, frozen),
        case(
            "frozen, dgrad summed",
            "fc1_dgrad: {method: ring_exchange}",
            RS_DGRAD,
            frozen,
        ),
        case("a ring", ring, USUAL, bias),
        case("two rings", rings, USUAL, bias),
        case("larger steps", "fc1_fprop: {aggregate: 1}", USUAL, |_| {}),
        case("a family", "fc1_fprop: {method: auto}", USUAL, bias),
    ]
}

fn row() -> Vec<Case> {
    let case = |name, config, flags, change: fn(&mut LinearConfig)| {
        let mut layer = LinearConfig::row(FEATURES[1], FEATURES[0]);
        layer.ub_name = Some("fc2".into());
        layer.flags = flags;
        change(&mut layer);
        Case {
            name,
            config,
            layer,
        }
    };
    let only_ag = Flags {
        ub_overlap_rs: false,
        ..USUAL
    };
    let only_rs = Flags {
        ub_overlap_ag: false,
        ..USUAL
    };
    let bias = |layer: &mut LinearConfig| layer.bias = true;
    let frozen = |layer: &mut LinearConfig| layer.frozen = true;
    let rings = "fc2_dgrad: {use_ce: 0, aggregate: 1, num_sm: 1}";
    vec![
        case("nothing overlapped", "", NONE, |_| {}),
        case("nothing overlapped, a bias", "", NONE, bias),
        case("the usual", "", USUAL, |_| {}),
        case("the usual, a bias", "", USUAL, bias),
        case("only gathers", "", only_ag, bias),
        case("only sums", "", only_rs, bias),
        case("frozen", "", USUAL, frozen),
        case("a ring", "fc2_dgrad: {use_ce: 0}", USUAL, bias),
        case("two rings", rings, USUAL, bias),
        case(
            "auto",
            "fc2_dgrad: {method: auto}\nfc2_fprop: {method: auto}",
            USUAL,
            bias,
        ),
    ]
}
