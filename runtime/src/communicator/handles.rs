//! Further handles of a rank, for what is made with it.

use super::Communicator;
use std::sync::{Arc, OnceLock};

impl Communicator {
    /// Another handle of this rank, for what was made with it.
    pub(crate) fn handle(&self) -> Communicator {
        Communicator {
            rank: self.rank,
            own: self.own.clone(),
            copies: self.copies.clone(),
            compares: self.compares.clone(),
            group: self.group.clone(),
            proven: self.proven.clone(),
            metrics: self.metrics.clone(),
            ancestors: self.ancestors.clone(),
            patience: self.patience,
            seat: false,
            shared: OnceLock::new(),
        }
    }

    /// One handle for all calls. Dropping a handle asks the driver how far the rank's stream is, so what is made often shares this one.
    pub(crate) fn shared(&self) -> &Arc<Communicator> {
        self.shared.get_or_init(|| Arc::new(self.handle()))
    }
}
