//! The number of hardware queues of a context, and whether launches block: two environment variables that the driver
//! reads when it starts.

use super::driver::check;
use crate::error::Error;
use cudarc::driver::sys;
use std::ffi::OsStr;
use std::sync::OnceLock;

/// Says how many.
pub(crate) const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// The variable that makes every launch wait for its end.
pub(crate) const BLOCKING: &str = "CUDA_LAUNCH_BLOCKING";
/// The most queues that there can be. We choose this if nobody set the variable.
pub(crate) const MOST: u32 = 32;
/// The driver's default: the queues of a context made while the variable was not set.
const UNCHOSEN: u32 = 8;

/// The variable's value before the driver was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Said {
    Number(u32),
    Nothing,
    /// Not a number from 1 to [`MOST`].
    Nonsense,
}

impl Said {
    fn of(text: Option<&OsStr>) -> Said {
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Said::Nothing;
        };
        let number = text.to_str().and_then(|text| text.parse().ok());
        match number {
            Some(number @ 1..=MOST) => Said::Number(number),
            Some(_) | None => Said::Nonsense,
        }
    }
}

/// Sets the variable to [`MOST`] if nobody set it. Call it before the driver is started.
pub(super) fn choose() -> Said {
    static SAID: OnceLock<Said> = OnceLock::new();
    *SAID.get_or_init(|| {
        let said = Said::of(std::env::var_os(QUEUES).as_deref());
        if said == Said::Nothing {
            // SAFETY: Rust's readers of the environment share a lock with this. A thread of another language that reads
            // it at this moment does not: such a program asks for the GPUs before it starts those threads, or sets the
            // variable for the process, and then nothing is written here.
            unsafe { std::env::set_var(QUEUES, MOST.to_string()) };
        }
        said
    })
}

/// The queues of each context, after the driver was started: as set by the user or by us, unless a context existed
/// before.
pub(super) fn count(said: Said, gpus: i32) -> Result<(), Error> {
    if COUNT.get().is_some() {
        return Ok(());
    }
    let count = match said {
        Said::Number(number) => Some(number),
        Said::Nonsense => None,
        Said::Nothing => {
            let mut ours = true;
            for gpu in 0..gpus {
                ours &= !is_open(gpu)?;
            }
            Some(if ours { MOST } else { UNCHOSEN })
        }
    };
    COUNT.get_or_init(|| count);
    Ok(())
}

static COUNT: OnceLock<Option<u32>> = OnceLock::new();

/// True if this process has the GPU's primary context open already.
fn is_open(gpu: i32) -> Result<bool, Error> {
    let (mut flags, mut open) = (0, 0);
    // SAFETY: the GPU is one of those that were counted, and both places are ours.
    let code = unsafe { sys::cuDevicePrimaryCtxGetState(gpu, &raw mut flags, &raw mut open) };
    check("ask whether a context is open", code)?;
    Ok(open != 0)
}

/// Hardware queues of a context.
///
/// # Errors
/// [`Error::Environment`] if the variable has an illegal value.
pub(crate) fn queues() -> Result<u32, Error> {
    match COUNT.get() {
        Some(Some(count)) => Ok(*count),
        Some(None) => Err(Error::Environment {
            variable: QUEUES,
            what: format!(
                "{QUEUES}={} is not a number of hardware queues",
                std::env::var_os(QUEUES)
                    .unwrap_or_default()
                    .to_string_lossy()
            ),
            help: format!("give 1 to {MOST}, or unset it: then it is {MOST}"),
        }),
        None => Ok(UNCHOSEN),
    }
}

/// True if launches block.
pub(crate) fn blocking() -> bool {
    blocks(std::env::var_os(BLOCKING).as_deref())
}

fn blocks(text: Option<&OsStr>) -> bool {
    let number = text.and_then(OsStr::to_str).map(str::trim);
    number.is_some_and(|text| !text.trim_start_matches('0').is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_environment_says_is_a_number_of_queues_or_refused() {
        let said = |text: &str| Said::of(Some(OsStr::new(text)));
        assert_eq!(Said::of(None), Said::Nothing);
        assert_eq!(said(""), Said::Nothing);
        assert_eq!(said("1"), Said::Number(1));
        assert_eq!(said("32"), Said::Number(32));
        for text in ["0", "33", "-1", "many", "8.0"] {
            assert_eq!(said(text), Said::Nonsense, "{text}");
        }
    }

    #[test]
    fn launches_block_where_the_variable_is_no_zero() {
        assert!(!blocks(None));
        for text in ["", "0", "00"] {
            assert!(!blocks(Some(OsStr::new(text))), "{text}");
        }
        for text in ["1", "2", "yes"] {
            assert!(blocks(Some(OsStr::new(text))), "{text}");
        }
    }
}
