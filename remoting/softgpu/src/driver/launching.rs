//! Kernel launches, which are queued in a stream or added to the graph that the stream captures.

use super::performing::How;
use super::state::Driver;
use crate::ffi::R;
use crate::kernels::code::Function;
use crate::kernels::launch::{Arguments, Launch, Shape};
use crate::streams::stream::Stream;
use crate::work::Work;
use driverapi::settings;
use graphs::LaunchEdges;
use std::sync::Arc;

impl Driver {
    /// Queues a kernel and returns false, or adds it to the graph that the stream captures and returns true. Errors in
    /// the launch's arguments are returned in both cases.
    pub fn launch(
        &'static self,
        function: &Arc<Function>,
        shape: Shape,
        arguments: Arguments,
        stream: &Stream,
        edges: &LaunchEdges,
    ) -> R<bool> {
        let launch = Launch::new(&self.executor, function, shape, arguments, &stream.context)?;
        function.old_launch.overwrite(shape.block, shape.dynamic_shared, || launch.params.clone());
        // A launch that takes no time runs at once if the stream is idle.
        let how = if launch.is_nothing() { How::AtOnce } else { How::Queued };
        let work = Work::Launch(Arc::new(launch));
        if self.graphs.capture_launch(stream.for_capture(), edges, || Ok(work.clone()))? {
            return Ok(true);
        }
        self.start(work, how, stream)?;
        if settings::launch_blocking() { stream.synchronise().map(|()| false) } else { Ok(false) }
    }
}
