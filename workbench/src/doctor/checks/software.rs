//! Software around the GPUs: queues, the compiler, its cache, and tables of winners.

use super::driver::CUDA;
use super::gpus::of_gpus;
use crate::doctor::facts::Facts;
use crate::doctor::finding::Finding;
use crate::render;
use counterflow_codegen::machine::Source;
use counterflow_runtime::tuning::Tuning;
use std::collections::BTreeMap;

/// Hardware queues of a context, at most and where nobody says another number.
const QUEUES: u32 = 32;
/// Room for some hundred kernels.
const ROOM: u64 = 64 << 20;

pub(super) fn queues(facts: &Facts) -> Vec<Finding> {
    let Some(survey) = facts.driver.told() else {
        return Vec::new();
    };
    let mut found = vec![match survey.queues {
        None => Finding::bad(
            "CUDA_DEVICE_MAX_CONNECTIONS is not a number of hardware queues",
            format!("give 1 to {QUEUES}, or unset it: then it is {QUEUES}"),
        ),
        Some(count @ QUEUES..) => Finding::good(format!("{count}")),
        Some(count) => Finding::note(
            format!("{count}: enough for ranks with a GPU each"),
            format!(
                "ranks that share a GPU need a queue each, four where copy engines move data: unset CUDA_DEVICE_MAX_CONNECTIONS to have {QUEUES}"
            ),
        ),
    }];
    if survey.blocking {
        found.push(Finding::bad(
            "CUDA_LAUNCH_BLOCKING makes every launch wait for its end",
            "unset it: ranks that share a GPU are refused with it, and nothing overlaps",
        ));
    }
    found
}

pub(super) fn compiler(facts: &Facts) -> Vec<Finding> {
    let toolkit = match &facts.compiler {
        Ok(toolkit) => toolkit,
        Err(why) => return vec![Finding::bad(&why.what, &why.help)],
    };
    if let Err(why) = &toolkit.works {
        return vec![Finding::bad(
            format!("{} compiles nothing: {}", toolkit.name, why.what),
            &why.help,
        )];
    }
    // Of an older driver its own line says enough.
    let driver = facts.driver.told().map(|survey| survey.cuda);
    let driver = driver.filter(|driver| *driver >= CUDA);
    vec![match (toolkit.version, driver) {
        (Some(own), Some(driver)) if own < driver => Finding::note(
            format!(
                "{}; the driver supports {}.{}",
                toolkit.name, driver.0, driver.1
            ),
            "it works; a later NVRTC may make faster code: COUNTERFLOW_NVRTC names its folder",
        ),
        (Some(own), Some(driver)) if own.0 > driver.0 => Finding::bad(
            format!(
                "{}; the driver supports {}.{}",
                toolkit.name, driver.0, driver.1
            ),
            "the driver loads no code of a later major version: install a later driver, or an earlier NVRTC",
        ),
        (None, _) => Finding::note(
            toolkit.name.clone(),
            "kernels that are not in the cache cannot be compiled: unset COUNTERFLOW_NVRTC to compile here",
        ),
        (Some(_), _) => Finding::good(toolkit.name.clone()),
    }]
}

pub(super) fn cache(facts: &Facts) -> Vec<Finding> {
    const MOVE: &str = "COUNTERFLOW_CACHE names another folder";
    let Some(folder) = &facts.cache.folder else {
        return vec![Finding::note(
            "off: each process compiles all its kernels, and no winners are kept",
            "unset COUNTERFLOW_CACHE, or name a folder; without HOME there is none",
        )];
    };
    let folder = folder.display();
    vec![match &facts.cache.room {
        Err(why) => Finding::bad(format!("{folder} cannot be written: {}", why.what), MOVE),
        Ok(free @ ..ROOM) => Finding::bad(
            format!("{folder} has {} free", render::bytes(*free)),
            format!("empty it, or the disk; {MOVE}"),
        ),
        Ok(free) => Finding::good(format!("{folder}, {} free", render::bytes(*free))),
    }]
}

/// Sources of choices: tables of measured winners, and what ops do where those have none.
pub(super) fn choices(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for tables in [&facts.tuned.shipped, &facts.tuned.user] {
        if let Err(why) = tables {
            found.push(Finding::bad(&why.what, &why.help));
        }
    }
    if let Err(why) = &facts.tuning {
        found.push(Finding::bad(&why.what, &why.help));
    }
    // A word that nobody knows is told above.
    let tuning = facts.tuning.as_ref().copied().unwrap_or(Tuning::Quick);
    let otherwise = match tuning {
        Tuning::Off => "the model chooses (COUNTERFLOW_TUNE=off)".to_owned(),
        Tuning::Quick | Tuning::Full => format!("ops measure when they are built ({tuning})"),
    };
    let rows = |of: &Result<BTreeMap<String, usize>, _>, gpu: &str| {
        let of = of.as_ref().ok();
        of.and_then(|rows| rows.get(gpu)).copied().unwrap_or(0)
    };
    found.extend(of_gpus(facts, |gpu| {
        let (shipped, own) = (
            rows(&facts.tuned.shipped, &gpu.name),
            rows(&facts.tuned.user, &gpu.name),
        );
        let rows = format!("{shipped} shipped and {own} own winners of this GPU");
        match (shipped + own, tuning) {
            (0, Tuning::Off) => Finding::note(
                format!("no winner was measured on this GPU: {otherwise}"),
                "unset COUNTERFLOW_TUNE, so that ops measure when they are built; or `bench --sweep` measures winners and keeps them",
            ),
            (0, Tuning::Quick | Tuning::Full) => {
                Finding::good(format!("no winner was measured on this GPU yet: {otherwise}"))
            }
            (_, _) => Finding::good(format!("{rows}; elsewhere {otherwise}")),
        }
    }));
    found
}

/// Numbers that the model takes for these GPUs, and their origin.
pub(super) fn profile(facts: &Facts) -> Vec<Finding> {
    const MEASURE: &str = "`profile` measures these GPUs in some seconds, and keeps the numbers";
    of_gpus(facts, |gpu| {
        let known = match facts.profiles.get(&gpu.name) {
            Some(Ok(known)) => known,
            Some(Err(why)) => return Finding::bad(&why.what, &why.help),
            None => return Finding::note("not looked for", MEASURE),
        };
        let profile = &known.profile;
        let each = [
            Source::Measured,
            Source::Fitted,
            Source::Published,
            Source::Assumed,
        ];
        let counts = each.map(|from| (from.name(), profile.count(from)));
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        let counts: Vec<String> = counts
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        let from = match &known.file {
            Some(file) => file.display().to_string(),
            None => "the package".to_owned(),
        };
        let says = format!("{} by {from}: {} numbers", profile.gpu, counts.join(", "));
        match known.is_of_another(&gpu.name) {
            true => Finding::note(format!("{says}; that is another GPU"), MEASURE),
            false if profile.count(Source::Assumed) > 0 => Finding::note(says, MEASURE),
            false => Finding::good(says),
        }
    })
}
