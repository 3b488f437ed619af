//! The trained parameters as one flat vector.
//!
//! Optimiser, clipping, EMA, checkpoints and reductions over processes all work on the same `[parameters]` tensor; the
//! layout says which part of it is which tensor of which file. State is keyed by the tensor's name, never by an id that
//! a new process would mint anew.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use nn::weights::{ParameterKeys, transpose};
use policy_sd3::adapter::StoredTensor;

/// One trained tensor's place in the flat vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Key in the weight file.
    pub key: String,
    /// Shape in the weight file.
    pub stored_shape: Vec<usize>,
    /// Whether the file holds the transpose.
    pub transposed: bool,
    /// Shape in the network.
    pub shape: Vec<usize>,
    /// First element.
    pub offset: usize,
    /// Elements.
    pub length: usize,
}

/// Which trained tensor lies where, sorted by key.
#[derive(Debug, Clone)]
pub struct Layout {
    entries: Vec<Entry>,
    by_id: HashMap<ParamId, usize>,
    total: usize,
}

impl Layout {
    /// The trainable parameters of a network.
    #[must_use]
    pub fn of<M: Module>(network: &M, keys: &ParameterKeys) -> Self {
        struct Collect(Vec<(ParamId, Vec<usize>)>);
        impl ModuleVisitor for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if is_trained(param) {
                    self.0.push((param.id, param.dims().to_vec()));
                }
            }
        }
        let mut found = Collect(Vec::new());
        network.visit(&mut found);
        let mut named: Vec<(ParamId, Entry)> = found
            .0
            .into_iter()
            .filter_map(|(id, shape)| {
                let key = keys.get(&id)?;
                let length = shape.iter().product();
                let entry = Entry {
                    key: key.key.clone(),
                    stored_shape: key.shape.clone(),
                    transposed: key.transposed,
                    shape,
                    offset: 0,
                    length,
                };
                Some((id, entry))
            })
            .collect();
        named.sort_by(|a, b| a.1.key.cmp(&b.1.key));
        let mut total = 0;
        for (_, entry) in &mut named {
            entry.offset = total;
            total += entry.length;
        }
        let by_id = named.iter().enumerate().map(|(i, (id, _))| (*id, i)).collect();
        Self {
            entries: named.into_iter().map(|(_, entry)| entry).collect(),
            by_id,
            total,
        }
    }

    /// Elements of the flat vector.
    #[must_use]
    pub fn len(&self) -> usize {
        self.total
    }

    /// Whether nothing is trained.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The tensors, sorted by key.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The name of the tensor that holds an element of the flat vector.
    #[must_use]
    pub fn name_of(&self, element: usize) -> &str {
        let after = self.entries.partition_point(|entry| entry.offset <= element);
        self.entries.get(after.wrapping_sub(1)).map_or("?", |entry| &entry.key)
    }

    /// The network's trained values as one vector on its plain device.
    #[must_use]
    pub fn gather<M: Module>(&self, network: &M) -> Tensor<1> {
        struct Gather<'a> {
            layout: &'a Layout,
            parts: Vec<Option<Tensor<1>>>,
        }
        impl ModuleVisitor for Gather<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(slot) = self.layout.by_id.get(&param.id) {
                    let length = self.layout.entries[*slot].length;
                    self.parts[*slot] = Some(param.val().without_autodiff().reshape([length]));
                }
            }
        }
        let mut gather = Gather {
            layout: self,
            parts: vec![None; self.entries.len()],
        };
        network.visit(&mut gather);
        Tensor::cat(gather.parts.into_iter().flatten().collect(), 0)
    }

    /// The network with its trained values replaced.
    #[must_use]
    pub fn scatter<M: Module>(&self, network: M, flat: &Tensor<1>) -> M {
        struct Scatter<'a> {
            layout: &'a Layout,
            flat: &'a Tensor<1>,
        }
        impl ModuleMapper for Scatter<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Some(slot) = self.layout.by_id.get(&param.id) else {
                    return param;
                };
                let entry = &self.layout.entries[*slot];
                let value = self.flat.clone().narrow(0, entry.offset, entry.length);
                param.map(|old| value.reshape(old.dims()))
            }
        }
        network.map(&mut Scatter { layout: self, flat })
    }

    /// The gradients of the trained parameters of `network` as one vector. A parameter that the loss does not reach
    /// has gradient zero, as in PyTorch's optimisers after `zero_grad(set_to_none=False)`.
    #[must_use]
    pub fn gradients<M: Module>(&self, network: &M, gradients: &Gradients, device: &Device) -> Tensor<1> {
        struct Collect<'a> {
            layout: &'a Layout,
            gradients: &'a Gradients,
            parts: Vec<Option<Tensor<1>>>,
        }
        impl ModuleVisitor for Collect<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(slot) = self.layout.by_id.get(&param.id) {
                    let length = self.layout.entries[*slot].length;
                    self.parts[*slot] = param.val().grad(self.gradients).map(|g| g.reshape([length]));
                }
            }
        }
        let mut collect = Collect {
            layout: self,
            gradients,
            parts: vec![None; self.entries.len()],
        };
        network.visit(&mut collect);
        let parts = collect
            .parts
            .into_iter()
            .zip(&self.entries)
            .map(|(part, entry)| part.unwrap_or_else(|| Tensor::zeros([entry.length], device)))
            .collect();
        Tensor::cat(parts, 0)
    }

    /// A flat vector as the tensors of a weight file.
    #[must_use]
    pub fn to_stored(&self, flat: &[f32]) -> BTreeMap<String, StoredTensor> {
        self.entries
            .iter()
            .map(|entry| {
                let values = &flat[entry.offset..entry.offset + entry.length];
                // The network holds [in…, out]; the file wants [out, in…].
                let values = if entry.transposed {
                    transpose(
                        values,
                        entry.length / entry.stored_shape.first().copied().unwrap_or(1).max(1),
                    )
                } else {
                    values.to_vec()
                };
                (entry.key.clone(), (entry.stored_shape.clone(), values))
            })
            .collect()
    }

    /// The flat vector of a weight file's tensors.
    ///
    /// # Errors
    ///
    /// The name of the first tensor that is missing or misshapen, or that is there and not trained.
    pub fn from_stored(&self, tensors: &BTreeMap<String, StoredTensor>) -> Result<Vec<f32>, String> {
        let mut flat = Vec::with_capacity(self.total);
        for entry in &self.entries {
            let (shape, values) = tensors
                .get(&entry.key)
                .ok_or_else(|| format!("`{}` is missing", entry.key))?;
            if *shape != entry.stored_shape || values.len() != entry.length {
                return Err(format!(
                    "`{}` has shape {shape:?}, not {:?}",
                    entry.key, entry.stored_shape
                ));
            }
            if entry.transposed {
                flat.extend(transpose(values, entry.stored_shape.first().copied().unwrap_or(1)));
            } else {
                flat.extend_from_slice(values);
            }
        }
        match tensors
            .keys()
            .find(|key| !self.entries.iter().any(|entry| entry.key == **key))
        {
            Some(extra) => Err(format!("`{extra}` is not a trained tensor of this network")),
            None => Ok(flat),
        }
    }

    /// A flat vector on a device.
    #[must_use]
    pub fn tensor(values: Vec<f32>, device: &Device) -> Tensor<1> {
        let length = values.len();
        Tensor::from_data(TensorData::new(values, [length]), device)
    }
}

/// Whether `Module::train` would track this parameter of a network on a plain device.
fn is_trained<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    // The setting of a parameter on a plain device is private to burn; what it leads to is not.
    param.clone().train().val().is_require_grad()
}
