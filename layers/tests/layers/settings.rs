//! Settings act: the ops that a layer has say so.

use super::{each, userbuffers};
use counterflow::Error;
use counterflow_layers::overlap::{Flags, Pass};
use counterflow_layers::{Linear, LinearConfig, Product};

const USUAL: Flags = Flags {
    ub_overlap_ag: true,
    ub_overlap_rs: true,
    ub_overlap_rs_dgrad: false,
    ub_bulk_dgrad: true,
    ub_bulk_wgrad: true,
};

fn products(config: &str, layer: &LinearConfig) -> Vec<Product> {
    let all = each(2, |rank| {
        let buffers = userbuffers(rank, [64, 64], config)?;
        Ok::<_, Error>(Linear::new(&buffers, layer)?.products())
    });
    all.expect("layers").remove(0)
}

fn of(products: &[Product], pass: Pass) -> (&str, &str, bool) {
    let found = products.iter().find(|product| product.pass == pass);
    let found = found.expect("a product");
    (&found.schedule, &found.variant, found.overlaps)
}

#[test]
fn sms_that_communicate_are_ctas_of_the_kernel() {
    let layer = LinearConfig {
        ub_name: Some("qkv".into()),
        flags: USUAL,
        ..LinearConfig::column(64, 64)
    };
    for sms in [2, 3, 16] {
        let config = format!(
            "qkv_fprop: {{use_ce: 0, num_sm: {sms}}}\nqkv_dgrad: {{num_sm: {sms}}}\nqkv_wgrad: {{num_sm: {sms}}}"
        );
        let found = products(&config, &layer);
        let wanted = format!("comm.ctas={sms} ");
        let schedules = [
            (Pass::Fprop, "ag_gemm_ring"),
            (Pass::Dgrad, "bulk"),
            (Pass::Wgrad, "wgrad_rs"),
        ];
        for (pass, name) in schedules {
            let (schedule, variant, overlaps) = of(&found, pass);
            assert_eq!((schedule, overlaps), (name, true));
            assert!(variant.contains(&wanted), "{variant}");
        }
    }
    let found = products("qkv_fprop: {aggregate: 1}", &layer);
    let (schedule, variant, _) = of(&found, Pass::Fprop);
    assert_eq!(schedule, "ag_gemm_pull");
    assert!(variant.contains("chunks=2048"), "{variant}");
}

#[test]
fn what_is_off_is_not_overlapped() {
    let layer = LinearConfig {
        ub_name: Some("proj".into()),
        flags: USUAL,
        ..LinearConfig::row(64, 64)
    };
    let found = products("", &layer);
    assert_eq!(found.len(), 3);
    let three = [Pass::Fprop, Pass::Dgrad, Pass::Wgrad];
    let told = three.map(|pass| (of(&found, pass).0, of(&found, pass).2));
    assert_eq!(
        told,
        [("gemm_rs", true), ("ag_gemm_pull", true), ("wgrad", false)]
    );
    let off = LinearConfig {
        flags: Flags::default(),
        frozen: true,
        ..layer
    };
    let found = products("", &off);
    assert_eq!(found.len(), 2, "no gradient of a frozen weight");
    assert!(
        found
            .iter()
            .all(|product| product.schedule == "gemm" && !product.overlaps)
    );
}
