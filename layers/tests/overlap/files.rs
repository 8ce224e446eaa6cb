//! Recipes load as they are, and mistakes are named with their lines.

use counterflow::codegen::interp::Numbers;
use counterflow_layers::overlap::{Config, GemmName, Method, Notice, Parallel, Settings};
use std::path::Path;

fn recipe(name: &str) -> Config {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recipes");
    Config::load(&folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn given(config: &Config, name: &str) -> Settings {
    let name: GemmName = name.parse().expect("a name");
    let found = config.products().find(|(product, _)| **product == name);
    found.map(|(_, given)| given.clone()).expect("settings")
}

#[test]
fn recipes_load_unchanged() {
    let tp4 = recipe("h100_h12288_tp4_mbs1_seqlen2048.yaml");
    let tp8 = recipe("h100_h12288_tp8_mbs2_seqlen2048.yaml");
    let bulk = recipe("bulk_only_tp4.yaml");
    assert_eq!(
        [&tp4, &tp8, &bulk].map(|one| one.products().count()),
        [10, 10, 6]
    );
    let fc2 = Settings {
        num_sm: Some(24),
        cga_size: Some(2),
        num_splits: Some(4),
        set_sm_margin: Some(true),
        ..Settings::method(Method::Pipeline)
    };
    assert_eq!(given(&tp8, "fc2_fprop"), fc2);
    let proj = Settings {
        aggregate: Some(true),
        ..Settings::method(Method::RingExchange)
    };
    assert_eq!(given(&tp8, "proj_dgrad"), proj);
    assert_eq!(given(&tp4, "fc2_dgrad"), proj);
    assert_eq!(given(&bulk, "qkv_wgrad").num_sm, Some(2));
    // Names that a file leaves out have their defaults.
    let default = Config::default();
    let [left, wanted] = [&bulk, &default].map(|one| one.gemm("fc1_fprop", Parallel::Column));
    assert_eq!(left.expect("a product"), wanted.expect("a product"));
}

#[test]
fn toml_and_yaml_say_the_same() {
    let yaml =
        "fc1_dgrad: {method: bulk, num_sm: 4, set_sm_margin: 0}\nmine_fprop: {method: auto}\n";
    let toml = "[fc1_dgrad]\nnum_sm = 4\nset_sm_margin = false\nmethod = \"bulk\"\n[mine_fprop]\nmethod = \"auto\"\n";
    let yaml = Config::from_yaml(yaml).expect("YAML");
    assert_eq!(yaml, Config::from_toml(toml).expect("TOML"));
    for empty in ["", "\n", "# nothing yet\n"] {
        assert_eq!(Config::from_yaml(empty).expect("empty"), Config::default());
        assert_eq!(Config::from_toml(empty).expect("empty"), Config::default());
    }
}

/// Each text in YAML and TOML, and the report.
#[test]
fn mistakes_are_named_with_their_lines() {
    let table = [
        (
            "qkv_dgrad:\n  method: bulk\n  num_sms: 4\n",
            "[qkv_dgrad]\nmethod = \"bulk\"\nnum_sms = 4\n",
            "line 3: qkv_dgrad has no key `num_sms`; did you mean `num_sm`?",
        ),
        (
            "qkv_dgrad:\n  method: bluk\n",
            "[qkv_dgrad]\nmethod = \"bluk\"\n",
            "line 2: qkv_dgrad.method is `bluk`: give one of ring_exchange, pipeline, bulk, external, auto; did you mean `bulk`?",
        ),
        (
            "\nqkv_dgrd: {}\n",
            "\n[qkv_dgrd]\n",
            "line 2: `qkv_dgrd` is no product; did you mean `qkv_dgrad`?",
        ),
        (
            "qkv_dgrad: {num_sm: 0}\n",
            "qkv_dgrad = {num_sm = 0}\n",
            "line 1: qkv_dgrad.num_sm is 0: give a number of 1 or more",
        ),
        (
            "qkv_fprop: {aggregate: 2}\n",
            "qkv_fprop = {aggregate = 2}\n",
            "line 1: qkv_fprop.aggregate is 2: give true, false, 1 or 0",
        ),
        (
            "qkv_fprop: {use_ce: [1]}\n",
            "qkv_fprop = {use_ce = [1]}\n",
            "line 1: qkv_fprop.use_ce is a list: give true, false, 1 or 0",
        ),
        (
            "qkv_fprop: bulk\n",
            "qkv_fprop = \"bulk\"\n",
            "line 1: qkv_fprop is `bulk`, not settings",
        ),
        (
            "fc1_fprop:\n  method: pipeline\n",
            "[fc1_fprop]\nmethod = \"pipeline\"\n",
            "line 1: fc1_fprop cannot have the method pipeline in a column-parallel layer: give ring_exchange, auto",
        ),
        (
            "proj_fprop: {is_reduce_scatter: 0}\n",
            "proj_fprop = {is_reduce_scatter = 0}\n",
            "line 1: proj_fprop with the method pipeline is a reduce-scatter: leave out `is_reduce_scatter`, or set it to 1",
        ),
        (
            "fc2_fprop: {aggregate: 1}\n",
            "fc2_fprop = {aggregate = 1}\n",
            "line 1: fc2_fprop cannot aggregate: it is a reduce-scatter with the method pipeline: leave out `aggregate`: it makes the steps of a gather by ring_exchange larger",
        ),
        (
            "fc1_dgrad: {method: pipeline}\nfc1_wgrad: {num_sm: 4}\n",
            "fc1_dgrad = {method = \"pipeline\"}\nfc1_wgrad = {num_sm = 4}\n",
            "line 2: fc1_wgrad has settings, and fc1_dgrad has the method pipeline",
        ),
        (
            "fc1_dgrad: {cga: 1, num_sm: x}\nfc1_wgrad: {num_sm: 1.5}\n",
            "fc1_dgrad = {cga = 1, num_sm = \"x\"}\nfc1_wgrad = {num_sm = 1.5}\n",
            "line 1: fc1_dgrad has no key `cga`\nline 1: fc1_dgrad.num_sm is `x`: give a number of 1 or more\nline 2: fc1_wgrad.num_sm is a fraction: give a number of 1 or more",
        ),
    ];
    for (yaml, toml, wanted) in table {
        let told = Config::from_yaml(yaml).expect_err(yaml);
        assert_eq!(told.to_string(), wanted);
        let told = Config::from_toml(toml).expect_err(toml);
        assert_eq!(told.to_string(), wanted, "{toml}");
    }
}

#[test]
fn text_that_is_none_is_named_with_its_line() {
    let table = [
        ("a_fprop: {}\nb_fprop: [1\n", "line 2: "),
        ("- 1\n", "line 1: a list"),
        ("qkv_fprop: {}\nqkv_fprop: {}\n", "line 2: "),
    ];
    for (broken, line) in table {
        let told = Config::from_yaml(broken).expect_err(broken).to_string();
        assert!(told.starts_with(line), "{told}");
    }
    let told = Config::from_toml("[a_fprop]\nmethod\n").expect_err("no value");
    assert!(told.to_string().starts_with("line 2: "), "{told}");
    let told = Config::load("recipe.json".as_ref()).expect_err("an ending");
    assert_eq!(
        told.help(),
        Some("give a file that ends in .yaml, .yml or .toml")
    );
}

#[test]
fn a_mistake_from_code_changes_nothing() {
    let mut config = Config::default();
    let bulk = Settings::method(Method::Bulk);
    config.set("fc1_wgrad", bulk).expect("bulk");
    let before = config.clone();
    let told = config.set("fc1_dgrad", Settings::method(Method::Auto));
    let told = told.expect_err("not in bulk");
    let help = told.help().unwrap_or_default();
    assert!(help.starts_with("leave out fc1_wgrad"), "{help}");
    assert!(config.set("fc1", Settings::default()).is_err());
    assert_eq!(config, before);
}

#[test]
fn what_has_nothing_to_act_on_is_told() {
    let recipe = recipe("h100_h12288_tp8_mbs2_seqlen2048.yaml");
    let told: Vec<String> = recipe.notices().iter().map(ToString::to_string).collect();
    let starts = |start: &str| told.iter().filter(|line| line.starts_with(start)).count();
    // Bulk products have CTAs that communicate, and pipelined ones have none.
    let sms = (starts("qkv_dgrad.num_sm"), starts("proj_fprop.num_sm "));
    assert_eq!(sms, (0, 1), "{told:#?}");
    assert_eq!(
        starts("qkv_dgrad.cga_size is without effect: "),
        1,
        "{told:#?}"
    );
    assert_eq!(starts("fc2_fprop.num_splits"), 1);
    assert_eq!(starts("proj_dgrad.aggregate"), 0, "it acts");
    let every = "qkv_fprop: {cga_size: 1, set_sm_margin: 1, num_splits: 2, num_max_streams: 3, num_sm: 2, atomic_gemm: 0, fp8_buf: 1, comm_priority: 0, gemm_priority: 0}\nproj_fprop: {use_ce: 1, pipeline_rs_overlap_first_gemm: 1}\n";
    let told = Config::from_yaml(every).expect("settings").notices();
    let keys: Vec<&str> = told.iter().map(|notice| notice.key).collect();
    let wanted = "use_ce pipeline_rs_overlap_first_gemm num_sm cga_size set_sm_margin num_splits num_max_streams atomic_gemm fp8_buf comm_priority gemm_priority";
    assert_eq!(keys.join(" "), wanted);
}

/// Sums travel in bf16, in layers of FP8, too.
#[test]
fn fp8_buf_acts_on_what_layers_of_fp8_gather_alone() {
    let given = "qkv_fprop: {fp8_buf: 1}\nproj_fprop: {fp8_buf: 1}\nfc1_dgrad: {fp8_buf: 1}\nfc1_wgrad: {fp8_buf: 1}\nfc2_dgrad: {fp8_buf: 1}\nfc2_fprop: {fp8_buf: 0}\n";
    let config = Config::from_yaml(given).expect("settings");
    let named = |notices: Vec<Notice>| -> Vec<String> {
        let of = notices.iter().filter(|notice| notice.key == "fp8_buf");
        let mut names: Vec<_> = of.map(|notice| notice.name.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(named(config.notices_in_fp8()), ["fc1_wgrad", "proj_fprop"]);
    let all = [
        "fc1_dgrad",
        "fc1_wgrad",
        "fc2_dgrad",
        "proj_fprop",
        "qkv_fprop",
    ];
    assert_eq!(named(config.notices()), all);
}

/// Recipes in which one character was taken away, put in or changed.
#[test]
fn a_mistake_anywhere_is_read_or_named_with_its_line() {
    let yaml = include_str!("../recipes/h100_h12288_tp4_mbs1_seqlen2048.yaml");
    let toml = "[qkv_fprop]\nmethod = \"ring_exchange\"\nuse_ce = 0\n\n[proj_fprop]\nnum_splits = 4\nset_sm_margin = true\n";
    type Read = fn(&str) -> Result<Config, counterflow::Error>;
    let forms: [(&str, Read); 2] = [(yaml, Config::from_yaml), (toml, Config::from_toml)];
    let mut numbers = Numbers::new(46);
    let mut refused = 0;
    for (text, read) in forms {
        for _ in 0..500 {
            let mut wrong: Vec<char> = text.chars().collect();
            let at = numbers.below(wrong.len() as u64) as usize;
            let other = *b":{}[]'\"#\n\t ,-&*!|x9\0"
                .get(numbers.below(20) as usize)
                .expect("one");
            match numbers.below(3) {
                0 => drop(wrong.remove(at)),
                1 => wrong.insert(at, other.into()),
                _ => wrong[at] = other.into(),
            }
            let wrong: String = wrong.into_iter().collect();
            let Err(error) = read(&wrong) else { continue };
            refused += 1;
            for line in error
                .to_string()
                .lines()
                .filter(|line| line.starts_with("line "))
            {
                let number = line
                    .split([' ', ':'])
                    .nth(1)
                    .and_then(|number| number.parse().ok());
                let number: usize = number.unwrap_or_else(|| panic!("{line}\n{wrong}"));
                let lines = wrong.matches('\n').count() + 1;
                assert!((1..=lines).contains(&number), "{line} of {lines}\n{wrong}");
            }
            assert!(error.to_string().starts_with("line "), "{error}\n{wrong}");
        }
    }
    assert!(refused > 400, "only {refused}");
}
