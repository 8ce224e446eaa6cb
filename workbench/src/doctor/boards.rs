//! NVML's answers about each GPU. Each question may be refused alone, as in a container or a virtual machine.

use super::facts::{Board, Limits, Link, Management, Problem, Rows, Slowed};
use crate::cuda::Fabric;
use counterflow_runtime::cuda::Pci;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::struct_wrappers::device::PciInfo;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
};
use nvml_wrapper::{Device, Nvml};

/// The most links that a GPU has.
const LINKS: u32 = 18;

/// Asks NVML about all GPUs of this machine.
pub(super) fn management() -> Result<Management, Problem> {
    let nvml = Nvml::init().map_err(|error| refused(&error.to_string()))?;
    let count = nvml
        .device_count()
        .map_err(|error| refused(&error.to_string()))?;
    let boards = (0..count).filter_map(|index| board(&nvml.device_by_index(index).ok()?));
    Ok(Management {
        driver: nvml.sys_driver_version().ok(),
        boards: boards.collect(),
    })
}

fn refused(why: &str) -> Problem {
    Problem {
        what: format!("NVML does not answer: {why}"),
        help: "libnvidia-ml.so.1 comes with the driver; a container gets it with the `utility` capability (NVIDIA_DRIVER_CAPABILITIES)".into(),
    }
}

fn board(device: &Device<'_>) -> Option<Board> {
    let pci = place(&device.pci_info().ok()?);
    let watts = |milli: u32| milli.div_ceil(1000);
    let limits = device.enforced_power_limit().ok();
    let limits = limits.zip(device.power_management_limit_default().ok());
    let most = device.max_clock_info(Clock::SM).ok();
    let default = device.default_applications_clock(Clock::SM).ok();
    let now = device.applications_clock(Clock::SM).ok();
    let set = now.zip(default);
    Some(Board {
        pci,
        mig: device.mig_mode().ok().map(|mode| mode.current == 1),
        persistence: device.is_in_persistent_mode().ok(),
        power: limits.map(|(now, default)| Limits {
            now: watts(now),
            default: watts(default),
        }),
        // Where application clocks are not told, nothing limits the most.
        clock: set
            .or(most.zip(most))
            .map(|(now, default)| Limits { now, default }),
        slowed: slowed(device.current_throttle_reasons().ok()),
        ecc: (device.is_ecc_enabled().ok()).map(|ecc| ecc.currently_enabled),
        uncorrected: device
            .total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
            .ok(),
        rows: rows(device),
        processes: device.running_compute_processes_count().ok(),
        links: (0..LINKS)
            .filter_map(|link| self::link(device, link))
            .collect(),
        fabric: Fabric::of(device),
    })
}

fn place(pci: &PciInfo) -> Pci {
    Pci {
        domain: pci.domain,
        bus: pci.bus,
        device: pci.device,
    }
}

fn slowed(reasons: Option<ThrottleReasons>) -> Vec<Slowed> {
    let reasons = reasons.unwrap_or(ThrottleReasons::empty());
    let hardware = ThrottleReasons::HW_SLOWDOWN
        | ThrottleReasons::HW_THERMAL_SLOWDOWN
        | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
    let each = [
        (hardware, Slowed::Hardware),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, Slowed::Heat),
        (
            ThrottleReasons::APPLICATIONS_CLOCKS_SETTING,
            Slowed::Setting,
        ),
        (ThrottleReasons::SW_POWER_CAP, Slowed::Power),
    ];
    let found = each
        .into_iter()
        .filter(|(bits, _)| reasons.intersects(*bits));
    found.map(|(_, why)| why).collect()
}

fn rows(device: &Device<'_>) -> Option<Rows> {
    let asked = [NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_FAILURE].map(FieldId);
    let told = device.field_values_for(&asked).ok()?;
    let mut each = told.into_iter().map(|field| match field.ok()?.value.ok()? {
        SampleValue::U32(value) => Some(value != 0),
        SampleValue::U64(value) => Some(value != 0),
        SampleValue::I64(value) => Some(value != 0),
        SampleValue::F64(_) => None,
    });
    Some(Rows {
        pending: each.next()??,
        failed: each.next()??,
    })
}

/// None if the GPU has no such link.
fn link(device: &Device<'_>, number: u32) -> Option<Link> {
    let link = device.link_wrapper_for(number);
    let active = link.is_active().ok()?;
    Some(Link {
        active,
        to: link.remote_pci_info().ok().map(|pci| place(&pci)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_gpu_is_not_slowed() {
        assert_eq!(slowed(None), []);
        assert_eq!(slowed(Some(ThrottleReasons::GPU_IDLE)), []);
        assert_eq!(
            slowed(Some(
                ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN | ThrottleReasons::SW_POWER_CAP
            )),
            [Slowed::Hardware, Slowed::Power]
        );
        assert_eq!(
            slowed(Some(ThrottleReasons::SW_THERMAL_SLOWDOWN)),
            [Slowed::Heat]
        );
        assert_eq!(
            slowed(Some(ThrottleReasons::APPLICATIONS_CLOCKS_SETTING)),
            [Slowed::Setting]
        );
    }
}
