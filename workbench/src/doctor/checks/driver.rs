//! NVIDIA's driver and its management library.

use crate::doctor::facts::{Asked, Facts};
use crate::doctor::finding::Finding;

/// The first driver with all that kernels and the runtime need.
const DRIVER: &str = "580";
/// The CUDA version that such a driver supports at least.
pub(super) const CUDA: (u32, u32) = (13, 0);

/// Advice where a library never answers.
const SILENT: &str = "the kernel's log (`dmesg`) names what hangs (Xid errors, NVSwitch, fabric manager); a reboot ends it. UB_TIMEOUT=SECONDS waits less";

pub(super) fn driver(facts: &Facts) -> Vec<Finding> {
    let version = facts
        .management
        .told()
        .and_then(|told| told.driver.as_deref());
    let version = version.map_or_else(String::new, |version| format!("{version}, "));
    vec![match &facts.driver {
        Asked::Told(survey) => {
            let (major, minor) = survey.cuda;
            let says = format!("{version}CUDA {major}.{minor}");
            match survey.cuda < CUDA {
                true => Finding::bad(
                    says,
                    format!(
                        "install driver {DRIVER} (CUDA {}.{}) or later",
                        CUDA.0, CUDA.1
                    ),
                ),
                false => Finding::good(says),
            }
        }
        Asked::Refused(why) => Finding::bad(format!("{version}{}", why.what), &why.help),
        Asked::Silent(limit) => Finding::bad(
            format!("{version}the driver does not answer within {:.0?}", limit),
            SILENT,
        ),
    }]
}

pub(super) fn management(facts: &Facts) -> Vec<Finding> {
    vec![match &facts.management {
        Asked::Told(_) => Finding::good("answers"),
        // Without a driver there is none: one line says so.
        Asked::Refused(_) if facts.driver.told().is_none() => return Vec::new(),
        Asked::Refused(why) => Finding::note(
            format!("{}: no clocks, power or links", why.what),
            &why.help,
        ),
        Asked::Silent(limit) => Finding::bad(
            format!("the management library does not answer within {limit:.0?}"),
            SILENT,
        ),
    }]
}
