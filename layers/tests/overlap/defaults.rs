//! What a product has if nothing is said: TransformerEngine's defaults.

use counterflow_layers::overlap::{Comm, Config, Method, Parallel};

#[test]
fn are_those_of_transformer_engine() {
    use Comm::{AllGather, ReduceScatter};
    use Method::{Bulk, External, Pipeline, RingExchange};
    let config = Config::default();
    // names, method, communication, SMs, cluster, margin, splits (none: as many as ranks), FP8 buffer
    let table = [
        (
            "qkv_fprop fc1_fprop proj_dgrad fc2_dgrad",
            RingExchange,
            AllGather,
            1,
            1,
            false,
            None,
            true,
        ),
        (
            "proj_fprop fc2_fprop",
            Pipeline,
            ReduceScatter,
            16,
            2,
            true,
            Some(4),
            false,
        ),
        (
            "qkv_dgrad fc1_dgrad",
            Bulk,
            AllGather,
            16,
            2,
            true,
            Some(4),
            true,
        ),
        (
            "qkv_wgrad fc1_wgrad",
            Bulk,
            ReduceScatter,
            16,
            2,
            true,
            Some(4),
            false,
        ),
        (
            "proj_wgrad fc2_wgrad",
            External,
            AllGather,
            16,
            2,
            true,
            Some(4),
            true,
        ),
    ];
    let mut seen = 0;
    for (names, method, comm, num_sm, cga, margin, splits, fp8) in table {
        for name in names.split(' ') {
            let column = name.starts_with("qkv") || name.starts_with("fc1");
            let parallel = if column {
                Parallel::Column
            } else {
                Parallel::Row
            };
            let gemm = config.gemm(name, parallel).expect(name);
            let found = (gemm.method, gemm.comm, gemm.num_sm, gemm.cga_size);
            assert_eq!(found, (method, comm, num_sm, cga), "{name}");
            let found = (gemm.set_sm_margin, gemm.num_splits, gemm.fp8_buf);
            assert_eq!(found, (margin, splits, fp8), "{name}");
            assert!(
                gemm.use_ce && !gemm.aggregate && !gemm.atomic_gemm,
                "{name}"
            );
            assert!(!gemm.pipeline_rs_overlap_first_gemm, "{name}");
            assert_eq!((gemm.comm_priority, gemm.gemm_priority), (None, None));
            seen += 1;
        }
    }
    assert_eq!(seen, 12);
    assert!(config.notices().is_empty());
}

#[test]
fn of_a_free_name_are_those_of_how_its_layer_is_divided() {
    let config = Config::default();
    let named = |name, parallel| config.gemm(name, parallel).expect("a name").method;
    assert_eq!(
        named("kv_up_proj_fprop", Parallel::Column),
        Method::RingExchange
    );
    assert_eq!(named("kv_up_proj_fprop", Parallel::Row), Method::Pipeline);
    let told = config
        .gemm("qkv_fprop", Parallel::Row)
        .expect_err("a column");
    assert_eq!(told.to_string(), "qkv_fprop of a row-parallel layer");
}
