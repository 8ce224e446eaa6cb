//! The schedule that a method means, and what the settings make of it.

use counterflow_layers::overlap::{Config, Parallel, Schedule};

#[test]
#[rustfmt::skip]
fn a_method_means_a_schedule() {
    use Parallel::{Column, Row};
    let table = [
        ("qkv_fprop: {}", "qkv_fprop", Column, Schedule::AgGemmPull),
        ("qkv_fprop: {use_ce: 0}", "qkv_fprop", Column, Schedule::AgGemmRing),
        ("qkv_fprop: {use_ce: 0, aggregate: 1}", "qkv_fprop", Column, Schedule::AgGemmDoubleRing),
        ("qkv_fprop: {method: auto}", "qkv_fprop", Column, Schedule::AllGatherGemm),
        ("qkv_dgrad: {}", "qkv_dgrad", Column, Schedule::Bulk),
        ("qkv_dgrad: {method: pipeline}", "qkv_dgrad", Column, Schedule::GemmRs),
        ("qkv_dgrad: {method: ring_exchange}", "qkv_dgrad", Column, Schedule::GemmRs),
        ("qkv_wgrad: {}", "qkv_wgrad", Column, Schedule::WgradRs),
        ("proj_fprop: {}", "proj_fprop", Row, Schedule::GemmRs),
        ("proj_fprop: {method: ring_exchange}", "proj_fprop", Row, Schedule::GemmRs),
        ("proj_fprop: {method: auto}", "proj_fprop", Row, Schedule::GemmReduceScatter),
        ("proj_dgrad: {method: auto}", "proj_dgrad", Row, Schedule::AllGatherGemm),
        ("qkv_dgrad: {method: auto}", "qkv_dgrad", Column, Schedule::GemmReduceScatter),
        ("proj_dgrad: {}", "proj_dgrad", Row, Schedule::AgGemmPull),
        ("proj_wgrad: {}", "proj_wgrad", Row, Schedule::Kept),
        ("mine_dgrad: {use_ce: 0}", "mine_dgrad", Row, Schedule::AgGemmRing),
    ];
    for (text, name, parallel, wanted) in table {
        let config = Config::from_yaml(text).expect(text);
        let gemm = config.gemm(name, parallel).expect(text);
        let found = gemm.schedule();
        assert_eq!(found, wanted, "{text}");
        let family = wanted == Schedule::AllGatherGemm || wanted == Schedule::GemmReduceScatter;
        assert!(family || found.name() == found.program().name, "{text}");
    }
}

#[test]
fn numbers_become_choices_that_the_schedule_has() {
    let text = "qkv_dgrad: {num_sm: 3}\nqkv_wgrad: {num_sm: 5}\nqkv_fprop: {use_ce: 0, num_sm: 7}\nproj_dgrad: {aggregate: 1, num_sm: 7}\n";
    let config = Config::from_yaml(text).expect("settings");
    let table = [
        ("qkv_dgrad", Parallel::Column, Some(("comm.ctas", 3))),
        ("qkv_wgrad", Parallel::Column, Some(("comm.ctas", 5))),
        ("qkv_fprop", Parallel::Column, Some(("comm.ctas", 7))),
        ("proj_dgrad", Parallel::Row, Some(("chunks", 2048))),
        ("proj_fprop", Parallel::Row, None),
    ];
    for (name, parallel, wanted) in table {
        let gemm = config.gemm(name, parallel).expect(name);
        let schedule = gemm.schedule();
        let found = gemm.choices();
        let wanted = wanted.map(|(choice, of): (_, u32)| (choice, of.into()));
        assert_eq!(found, Vec::from_iter(wanted), "{name}");
        let program = schedule.program();
        for (choice, _) in found {
            assert!(
                program.tunables.iter().any(|one| one.name == choice),
                "{choice}"
            );
        }
    }
}
