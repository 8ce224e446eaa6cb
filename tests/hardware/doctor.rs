//! `doctor` on real GPUs: a survey says of each GPU, without a context, what an open GPU says of itself.

use crate::{fine, gpus};
use counterflow::cuda::{Gpu, Survey};
use counterflow_workbench::{GOOD, REJECTED, Surroundings, run_with};
use serde_json::Value as Json;

#[test]
fn a_survey_says_of_each_gpu_what_it_says_when_open() {
    let Some(count) = gpus::here() else {
        return;
    };
    let survey = fine(Survey::take());
    assert!(survey.cuda >= (13, 0), "{:?}", survey.cuda);
    assert_eq!(survey.gpus.len(), count as usize);
    for (ordinal, told) in survey.gpus.iter().enumerate() {
        let gpu = fine(Gpu::open(ordinal as u32));
        assert_eq!(
            (&told.name[..], told.sms, told.memory),
            (gpu.name(), gpu.sms(), gpu.memory())
        );
        assert_eq!(told.uuid, fine(gpu.uuid()));
        assert_eq!(told.capability, (9, 0));
        // The suite's heaps need both.
        assert!(told.virtual_memory && told.file_handles, "{told:?}");
        assert_eq!(told.reach.len(), count as usize);
        let own = told.reach[ordinal];
        assert!(own.access && own.atomics);
    }
    let places: std::collections::BTreeSet<_> = survey.gpus.iter().map(|gpu| gpu.pci).collect();
    assert_eq!(places.len(), count as usize, "a place each");
}

#[test]
fn doctor_tells_each_gpu() {
    let Some(count) = gpus::here() else {
        return;
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let words = ["doctor", "doctor", "--json"];
    let code = run_with(words, &[], &Surroundings::default(), &mut out, &mut err);
    assert!(err.is_empty(), "{}", String::from_utf8_lossy(&err));
    let object: Json = serde_json::from_slice(&out).expect("an object");
    println!("{object:#}");
    let of = |check: &str| {
        let lines = object["findings"].as_array().expect("a list").iter();
        let lines = lines.filter(|line| line["check"] == check);
        lines.cloned().collect::<Vec<_>>()
    };
    assert_eq!(of("driver")[0]["grade"], "ok");
    let name = fine(Gpu::open(0)).name().to_owned();
    let says = of("GPUs")[0]["says"].as_str().expect("text").to_owned();
    assert!(says.contains(&name), "{says}");
    for check in [
        "compute mode",
        "peer access",
        "memory handles",
        "hardware queues",
    ] {
        assert!(!of(check).is_empty(), "{check}");
    }
    let bad = object["findings"].as_array().expect("a list").iter();
    let bad = bad.filter(|line| line["grade"] == "bad").count();
    assert_eq!(code, if bad == 0 { GOOD } else { REJECTED });
    // NVML may be missing in a container; if it answers, it tells of every GPU.
    if of("NVML")[0]["grade"] == "ok" {
        let links = object["links"].as_array().expect("rows");
        assert_eq!(links.len(), count as usize);
        for (one, row) in links.iter().enumerate() {
            for (other, cell) in links.iter().enumerate() {
                assert_eq!(row[other], cell[one], "links go both ways");
            }
        }
    }
}
