// Compiles WGSL with the Tint of whoever runs this: a browser, or Node.js with Dawn (the npm package `webgpu`).
// A text is {source, layout, pipeline}; the answer has, for each, what was said against it (or null), and whether a
// pipeline was made of it, where that was asked for.
async (gpu, texts) => {
  const adapter = await gpu.requestAdapter();
  if (!adapter) throw new Error("There is no WebGPU adapter.");
  const wanted = ["shader-f16", "subgroups"].filter((name) => adapter.features.has(name));
  const names = [
    "maxComputeInvocationsPerWorkgroup",
    "maxComputeWorkgroupSizeX",
    "maxComputeWorkgroupSizeY",
    "maxComputeWorkgroupSizeZ",
    "maxComputeWorkgroupStorageSize",
    "maxStorageBuffersPerShaderStage",
    "maxStorageBufferBindingSize",
    "maxBufferSize",
  ];
  const limits = Object.fromEntries(names.map((name) => [name, adapter.limits[name]]));
  const device = await adapter.requestDevice({ requiredFeatures: wanted, requiredLimits: limits });
  device.addEventListener("uncapturederror", (event) => event.preventDefault());
  const COMPUTE = 4;

  const layoutOf = (kinds) => {
    if (!kinds) return "auto";
    const entries = kinds.map((type, binding) => {
      const buffer = type === "uniform" ? { type, hasDynamicOffset: true } : { type };
      return { binding, visibility: COMPUTE, buffer };
    });
    return device.createPipelineLayout({ bindGroupLayouts: [device.createBindGroupLayout({ entries })] });
  };

  const said = async ({ source, layout, pipeline }) => {
    device.pushErrorScope("validation");
    const module = device.createShaderModule({ code: source });
    const { messages } = await module.getCompilationInfo();
    await device.popErrorScope();
    const errors = messages.filter(({ type }) => type === "error");
    if (errors.length) {
      return { refused: errors.map(({ lineNum, message }) => `line ${lineNum}: ${message}`).join("\n"), pipeline: false };
    }
    // What needs more than this adapter has is not the text's fault: the module was taken, and that is all to be known.
    const buffers = (layout ?? []).filter((kind) => kind !== "uniform").length;
    if (!pipeline || buffers > device.limits.maxStorageBuffersPerShaderStage) return { refused: null, pipeline: false };
    device.pushErrorScope("validation");
    let refused = null;
    try {
      await device.createComputePipelineAsync({ layout: layoutOf(layout), compute: { module } });
    } catch (error) {
      refused = error.message;
    }
    const scoped = await device.popErrorScope();
    refused = refused ?? (scoped ? scoped.message : null);
    const beyond = refused !== null && /exceeds the maximum|larger than the maximum/.test(refused);
    return { refused: beyond ? null : refused, pipeline: refused === null };
  };

  const answers = [];
  for (const text of texts) answers.push(await said(text));
  device.destroy();
  return answers;
}
