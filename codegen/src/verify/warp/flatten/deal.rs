//! Which items are a CTA's.

use super::super::case::comm_ctas;
use super::Flattener;
use crate::warp::{Deal, Values};

impl Flattener<'_> {
    pub(super) fn start(&self) -> u32 {
        let (block, blocks) = self.cluster();
        let comm = comm_ctas(self.case.pipeline);
        match self.deal.0 {
            Deal::All | Deal::Comm => block,
            Deal::Others => block.saturating_sub(comm),
            // One wave is done by the others alone.
            Deal::Join if block >= comm => block - comm,
            Deal::Join => blocks - comm + block,
        }
    }

    /// Which cluster, and how many there are: items are dealt to clusters.
    fn cluster(&self) -> (u32, u32) {
        let (block, blocks) = self.env.block();
        let ctas = self.case.pipeline.cta.ctas();
        (block / ctas, blocks / ctas)
    }

    /// The index of this runner's next item.
    pub(super) fn next(&mut self) -> u32 {
        if self.deal.1 {
            self.env.index = self.next_of_all();
        }
        self.next_of_all()
    }

    /// The index of the CTA's next item.
    pub(super) fn next_of_all(&self) -> u32 {
        let (block, blocks) = self.cluster();
        let comm = comm_ctas(self.case.pipeline);
        let (index, others) = (self.env.index, blocks - comm);
        match self.deal.0 {
            Deal::All => index + blocks,
            Deal::Comm => index + comm,
            Deal::Others => index + others,
            Deal::Join if index >= others => index + blocks,
            Deal::Join => others + block,
        }
    }
}
