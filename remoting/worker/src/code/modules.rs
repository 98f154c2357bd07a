//! Loads images as modules, links images, and launches kernels.

use crate::code::image_rules::{Attributes, ImageRules, complete};
use crate::code::launch_shape::config;
use crate::driver::loaded::{LoadedModule, Taken};
use crate::driver::{Code, Driver, Handle, JitOptions, Result};
use crate::guard::defences::{Defence, stands};
use crate::order::completions::Then;
use crate::order::pending::Described;
use crate::session::commands::{Outcome, Session};
use crate::session::objects::{Context, Kernel, Module};
use crate::session::settings::{KernelSettings, Settings};
use driverapi::attributes::{LAUNCH_LARGEST_CLUSTER, LAUNCH_REQUIRED_BLOCK_WIDTH};
use driverapi::device_bytes::device_bytes;
use driverapi::errors::*;
use driverapi::rules::{Rule, kept};
use protocol::{
    KernelDescribe, KernelInfo, KernelParam, Launch, Link, Linked, MAX_PAYLOAD, ModuleGlobal, ModuleLoad, ModuleLoaded,
    ModuleUnload, NEED_IMAGE, Reply, Symbol, Wire, bundled_images,
};
use std::ffi::CString;
use std::sync::Arc;

/// Number of the driver's `CUfunction_attribute`s.
const FUNCTION_ATTRIBUTES: u32 = 18;

struct Loaded {
    handle: Handle,
    kernels: Vec<(Handle, String, Attributes)>,
}

fn load(
    driver: &Driver,
    context: Handle,
    image: &[u8],
    options: &[(u32, u64)],
    eager: bool,
    bytes: u64,
) -> std::result::Result<Loaded, (Code, String)> {
    // A zero byte follows the bytes that the client sent.
    let sent = image.split_last().map_or(image, |(_, sent)| sent);
    let needs = device_bytes(bundled_images(sent).as_deref().unwrap_or(&[sent]));
    if needs > bytes && stands(Defence::ImageSize) {
        return Err((CUDA_ERROR_INVALID_VALUE, "the image takes more memory than the client said".to_owned()));
    }
    driver.set_current(context).map_err(|code| (code, String::new()))?;
    let mut jit = JitOptions::new(options);
    let handle = driver.module_load(image, &mut jit).map_err(|code| (code, jit.logs().1))?;
    list(driver, handle, &ImageRules::of(image), eager).map_err(|code| {
        let _ = driver.module_unload(handle);
        let log = match code {
            CUDA_ERROR_NOT_SUPPORTED => {
                "the appliance's driver cannot list a module's kernels: it needs driver 550 or newer"
            }
            _ => "the kernels of the module could not be listed",
        };
        (code, log.to_owned())
    })
}

fn list(driver: &Driver, handle: Handle, rules: &ImageRules, eager: bool) -> Result<Loaded> {
    let functions = driver.module_functions(handle)?;
    if eager {
        functions.iter().try_for_each(|function| driver.function_load(*function))?;
    }
    let named = |function| {
        let name = driver.function_name(function)?;
        let rules = rules.of_kernel(&name);
        Ok((function, name, rules))
    };
    Ok(Loaded { handle, kernels: functions.into_iter().map(named).collect::<Result<_>>()? })
}

/// Loads a kernel and returns its parameters and attributes. Loading may wait for running kernels, and a launch must
/// never wait. Therefore a helper thread loads the kernel before the client may launch it.
fn describe(driver: &Driver, function: Handle) -> Result<KernelInfo> {
    driver.function_load(function)?;
    let mut params = Vec::new();
    loop {
        match driver.function_param(function, params.len()) {
            Ok((offset, size)) => params.push(KernelParam { offset: offset as u32, size: size as u32 }),
            Err(CUDA_ERROR_INVALID_VALUE) => break,
            Err(code) => return Err(code),
        }
    }
    let attribute = |id| driver.function_attribute(function, id).ok().map(|value| (id, value));
    // The software GPU reports additional launch rules in these attributes.
    let asked = (0..FUNCTION_ATTRIBUTES).chain(LAUNCH_REQUIRED_BLOCK_WIDTH..=LAUNCH_LARGEST_CLUSTER);
    Ok(KernelInfo { params, attributes: asked.filter_map(attribute).collect() })
}

impl Session {
    pub fn reply_logged(&mut self, seq: u64, code: Code, log: String) {
        self.reply_with(seq, code, &ModuleLoaded { log, ..ModuleLoaded::default() }, &[]);
    }

    pub fn load_module(&mut self, seq: u64, c: &ModuleLoad) -> Result<()> {
        let Context { handle: context, device, .. } = *self.contexts.get(c.context)?;
        if self.modules.contains(c.module) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if self.modules.is_full() {
            return Err(self.out_of("modules", self.budgets.modules));
        }
        let Some(image) = self.images.get(&c.hash) else {
            self.reply_logged(seq, NEED_IMAGE, String::new());
            return Ok(());
        };
        let taken = Taken { device, bytes: c.bytes };
        self.memory.take(device, c.bytes)?;
        let (made, options, eager) = (c.clone(), c.options.clone(), c.eager);
        self.helpers.start(
            move |driver| load(driver, context, &image, &options, eager, taken.bytes),
            move |session: &mut Session, loaded| match loaded {
                Ok(loaded) => session.module_loaded(seq, made, loaded, taken),
                Err((code, log)) => {
                    session.memory.give_back(taken.device, taken.bytes);
                    session.reply_logged(seq, code, log);
                }
            },
        );
        Ok(())
    }

    fn module_loaded(&mut self, seq: u64, made: ModuleLoad, loaded: Loaded, taken: Taken) {
        let mut names = Vec::with_capacity(loaded.kernels.len());
        let kernel = |(function, name, rules)| {
            names.push(name);
            Kernel { function, rules, parameter_bytes: None, settings: KernelSettings::default() }
        };
        let kernels = loaded.kernels.into_iter().map(kernel).collect();
        let (id, context, loaded) = (made.module, made.context, LoadedModule::new(loaded.handle, taken));
        self.modules.insert(id, Ok(Module { context, made, loaded, kernels }));
        let answer = ModuleLoaded { kernels: names, log: String::new() };
        if answer.size() + Reply::MIN_SIZE > MAX_PAYLOAD {
            return self.reply_logged(
                seq,
                CUDA_ERROR_OUT_OF_MEMORY,
                "the module has too many kernels to list".to_owned(),
            );
        }
        self.reply_with(seq, 0, &answer, &[]);
    }

    pub fn kernel_describe(&mut self, seq: u64, c: &KernelDescribe) -> Result<()> {
        let module = self.modules.get(c.module)?;
        let (context, loaded) = (self.contexts.get(module.context)?.handle, Arc::clone(&module.loaded));
        let kernel = module.kernels.get(c.kernel as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        let (function, rules) = (kernel.function, kernel.rules.clone());
        let (id, index) = (c.module, c.kernel as usize);
        self.helpers.start(
            move |driver| loaded.with(|| driver.set_current(context).and_then(|()| describe(driver, function))),
            move |session: &mut Session, described| match described {
                Ok(info) => session.charge_stack(Described { seq, module: id, index, info: complete(info, &rules) }),
                Err(code) => session.reply(seq, code),
            },
        );
        Ok(())
    }

    /// Allows launches of the kernel, which has been loaded and described.
    pub fn kernel_described(&mut self, described: &Described) {
        let Described { seq, module, index, ref info } = *described;
        if let Ok(module) = self.modules.get_mut(module)
            && let Some(kernel) = module.kernels.get_mut(index)
        {
            kernel.parameter_bytes = Some(info.parameter_bytes());
        }
        self.reply_with(seq, 0, info, &[]);
    }

    /// Unloads a module when all work that the context has so far is complete. The driver may wait for that work, and
    /// the session must not wait.
    pub fn module_unload(&mut self, seq: u64, c: &ModuleUnload) -> Result<()> {
        let Module { context, loaded: module, .. } = self.modules.remove(c.module)?;
        self.context_join(context, seq, Then::UnloadModule { context, module, token: c.token })
    }

    pub fn unload(&mut self, id: u64, module: Arc<LoadedModule>, token: u64) {
        let taken = module.taken;
        // If the context is gone, so is the module.
        let Ok(context) = self.contexts.get(id).map(|c| c.handle) else { return self.gave_back(taken, token) };
        self.helpers.start(
            move |driver| driver.set_current(context).and_then(|()| module.unload(driver)),
            move |session: &mut Session, unloaded| {
                session.late_in(id, unloaded);
                session.gave_back(taken, token);
            },
        );
    }

    pub fn module_global(&mut self, seq: u64, c: &ModuleGlobal) -> Result<()> {
        let (handle, context) = {
            let module = self.modules.get(c.module)?;
            (module.loaded.handle, module.context)
        };
        self.enter(context)?;
        let name = CString::new(c.name.as_str()).map_err(|_| CUDA_ERROR_NOT_FOUND)?;
        let (address, size) = self.driver.module_global(handle, &name)?;
        self.memory.add_global(address, size as u64);
        let managed = self.driver.is_managed(address);
        self.reply_with(seq, 0, &Symbol { address, size: size as u64, managed }, &[]);
        Ok(())
    }

    /// Launches a kernel. `settings` are the settings that the kernel had when the launch arrived, if the launch has
    /// waited since.
    pub fn launch(
        &mut self,
        seq: u64,
        stream_id: u64,
        c: &Launch,
        settings: Option<&Settings>,
        parameters: &[u8],
    ) -> Result<Outcome> {
        if !self.may_launch(stream_id)? {
            return Ok(Outcome::Blocked);
        }
        let Some(stream) = self.begin(stream_id)? else {
            self.launch_waits(stream_id)?;
            return Ok(Outcome::Blocked);
        };
        let mut given = self.launch_attributes(stream_id, &c.shape.attributes)?;
        let module = self.modules.get(c.module)?;
        let Kernel { function, parameter_bytes, settings: own, .. } = module.kernel(c.kernel)?;
        // The driver reads as many bytes as the kernel's parameters have, whatever size is passed.
        let parameters = parameters.get(..parameter_bytes.unwrap_or(0)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        own.apply(&self.driver, *function, settings.unwrap_or(own.wanted()))?;
        if !kept(Rule::LaunchCount) && self.stats.launches == 500 {
            return Ok(Outcome::Done);
        }
        let function = *function;
        self.driver.launch(function, &config(&c.shape, &mut given.raw, stream), parameters)?;
        self.stats.launches += 1;
        self.issued(stream_id);
        self.launched(stream_id, function)?;
        self.launch_recorded(seq, given)?;
        Ok(Outcome::Done)
    }

    pub fn link(&mut self, seq: u64, c: &Link) -> Result<()> {
        let context = self.contexts.get(c.context)?.handle;
        let images: Option<Vec<_>> = c.inputs.iter().map(|input| self.images.get(&input.hash)).collect();
        let Some(images) = images else {
            self.reply(seq, NEED_IMAGE);
            return Ok(());
        };
        let (inputs, options) = (c.inputs.clone(), c.options.clone());
        self.helpers.start(
            move |driver| {
                let mut jit = JitOptions::new(&options);
                let named = |(input, image): (&protocol::LinkInput, &Arc<Vec<u8>>)| {
                    const PTX: u32 = 1;
                    // Only PTX is text. Its size includes the terminating zero byte.
                    let end = image.len() - usize::from(input.kind != PTX);
                    (input.kind, CString::new(input.name.replace('\0', "")).unwrap_or_default(), image.clone(), end)
                };
                let named: Vec<_> = inputs.iter().zip(&images).map(named).collect();
                let inputs: Vec<_> =
                    named.iter().map(|(kind, name, image, end)| (*kind, name.clone(), &image[..*end])).collect();
                let linked = driver.set_current(context).and_then(|()| driver.link(&inputs, &mut jit));
                (linked, jit.logs())
            },
            move |session: &mut Session, (linked, (info_log, error_log))| {
                let answer = Linked { info_log, error_log };
                match linked {
                    Ok(image) if image.len() + answer.size() + Reply::MIN_SIZE > MAX_PAYLOAD => {
                        session.reply_with(seq, CUDA_ERROR_OUT_OF_MEMORY, &answer, &[]);
                    }
                    Ok(image) => session.reply_with(seq, 0, &answer, &image),
                    Err(code) => session.reply_with(seq, code, &answer, &[]),
                }
            },
        );
        Ok(())
    }
}
