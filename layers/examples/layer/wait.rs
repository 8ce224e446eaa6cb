//! Waits for what another library does with the replicas.

use counterflow::Error;
use std::time::{Duration, Instant};

/// Time between two questions. The first ones come without it: most sums end in microseconds.
const PAUSE: Duration = Duration::from_micros(50);
const EAGER: Duration = Duration::from_millis(1);

/// Asks until it is `done`, as long as the replicas are `alive`, and until the limit.
///
/// # Errors
/// What either question tells; [`Error::Aborted`] at the limit.
pub fn until(
    what: &str,
    limit: Duration,
    done: impl Fn() -> Result<bool, Error>,
    alive: impl Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    let begun = Instant::now();
    while !done()? {
        let waited = begun.elapsed();
        if waited < EAGER {
            std::hint::spin_loop();
            continue;
        }
        alive()?;
        if waited > limit {
            return Err(Error::Aborted {
                what: format!("{what} took longer than {limit:?}"),
                help: "see what each replica said, and whether all run; UB_TIMEOUT (seconds) sets the limit".into(),
            });
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
