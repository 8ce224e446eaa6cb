//! Streams: a GPU's work in order.

use super::event::settled;
use super::lane::{Entrance, Lane};
use super::refusal;
use crate::cuda;
use crate::emulated;
use crate::error::Error;
use counterflow_emulator::open::{Compare, Launch, TwinLaunch};
use cudarc::driver::CudaStream;
use std::sync::Arc;
use std::time::Duration;

/// An ordered queue of a GPU's work. Clones are the same stream.
///
/// Where ranks share a GPU, the driver may put a stream's first work behind a wait of another rank. Let a stream of
/// yours do something before the ranks launch.
///
/// ```
/// use counterflow::{Communicator, driver::{Event, Stream}};
///
/// let rank = &Communicator::emulated(1)?[0];
/// let (one, other): (Stream, Stream) = (rank.gpu().stream()?, rank.gpu().stream()?);
/// other.wait(&Event::record(&one)?)?; // what comes later in `other` comes after what is in `one`
/// other.synchronize()?;
/// assert!(!other.is_capturing());
/// assert!(other.cuda().is_err(), "cudarc has no emulated streams");
/// # Ok::<(), counterflow::Error>(())
/// ```
///
/// `Stream::from` takes one of cudarc's:
///
/// ```no_run
/// # use counterflow::{Communicator, driver::Stream};
/// let rank = &Communicator::local(1)?[0];
/// let theirs = rank.gpu().cuda()?.context().new_stream().expect("a stream"); // cudarc's
/// let stream = Stream::from(theirs);
/// # Ok::<(), counterflow::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stream(pub(super) Kind, Option<Entrance>);

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Cuda(Arc<CudaStream>),
    Emulated(emulated::Stream),
}

impl From<Arc<CudaStream>> for Stream {
    fn from(stream: Arc<CudaStream>) -> Stream {
        Stream(Kind::Cuda(stream), None)
    }
}

impl From<emulated::Stream> for Stream {
    fn from(stream: emulated::Stream) -> Stream {
        Stream(Kind::Emulated(stream), None)
    }
}

impl Stream {
    /// The stream of cudarc that it is.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if it is emulated.
    pub fn cuda(&self) -> Result<&Arc<CudaStream>, Error> {
        match &self.0 {
            Kind::Cuda(stream) => Ok(stream),
            Kind::Emulated(_) => Err(refusal::emulated("this stream")),
        }
    }

    /// Waits until everything in it is done. It has no time limit: [`Communicator::synchronize`] has.
    ///
    /// [`Communicator::synchronize`]: crate::Communicator::synchronize
    ///
    /// # Errors
    /// What its work ended with.
    pub fn synchronize(&self) -> Result<(), Error> {
        match &self.0 {
            Kind::Cuda(stream) => cuda::synchronize(stream),
            Kind::Emulated(stream) => stream.synchronize(),
        }
    }

    /// True if both are one stream.
    pub(crate) fn is(&self, other: &Stream) -> bool {
        match (&self.0, &other.0) {
            (Kind::Cuda(one), Kind::Cuda(other)) => {
                one.cu_stream() == other.cu_stream()
                    && one.context().cu_ctx() == other.context().cu_ctx()
            }
            (Kind::Emulated(one), Kind::Emulated(other)) => one.is(other),
            (Kind::Cuda(_), Kind::Emulated(_)) | (Kind::Emulated(_), Kind::Cuda(_)) => false,
        }
    }

    /// True if the stream's work is recorded into a graph instead of done.
    pub fn is_capturing(&self) -> bool {
        match &self.0 {
            Kind::Cuda(stream) => cuda::bind(stream).is_ok() && cuda::is_capturing(stream),
            Kind::Emulated(stream) => stream.is_capturing(),
        }
    }

    /// Compares a launch with the peers' on an emulated GPU.
    pub(crate) fn compare(&self, compare: Compare) -> Result<(), Error> {
        match &self.0 {
            Kind::Emulated(stream) => stream.compare(compare),
            Kind::Cuda(_) => Err(refusal::emulated("one of a launch and a stream")),
        }
    }

    /// Launches a plan on an emulated GPU.
    pub(crate) fn emulate(&self, launch: Arc<Launch>) -> Result<(), Error> {
        match &self.0 {
            Kind::Emulated(stream) => stream.launch(launch),
            Kind::Cuda(_) => Err(Error::Usage {
                what: "a plan without machine code on a CUDA GPU".into(),
                legal: "compile it".into(),
            }),
        }
    }

    /// Launches the twin of a kernel on an emulated GPU.
    pub(crate) fn twin(&self, launch: TwinLaunch) -> Result<(), Error> {
        match &self.0 {
            Kind::Emulated(stream) => stream.twin(launch),
            Kind::Cuda(_) => Err(refusal::emulated("one of a twin and a stream")),
        }
    }

    /// Lane of the stream, if it is a rank's own.
    pub(crate) fn lane(&self) -> Option<&Lane> {
        self.1.as_ref().map(|entrance| &*entrance.lane)
    }

    pub(super) fn entrance(&self) -> Option<&Entrance> {
        self.1.as_ref()
    }

    /// Makes the stream a rank's own, in that lane. A thread of the rank waits so long for others that are in.
    #[must_use]
    pub(crate) fn in_lane(self, lane: Arc<Lane>, limit: Duration) -> Stream {
        Stream(self.0, Some(Entrance { lane, limit }))
    }
}

/// True if the stream is empty. Does not wait.
pub(crate) fn is_done(stream: &Stream) -> Result<bool, Error> {
    match &stream.0 {
        Kind::Cuda(stream) => cuda::is_done(stream),
        Kind::Emulated(stream) => stream.is_done(),
    }
}

/// True if nothing of the stream runs any more: it is empty, or the context is dead. Not, if that cannot be asked.
pub(crate) fn is_past(stream: &Stream) -> bool {
    settled(is_done(stream))
}
