//! Tensors that a file keeps one after the other in a single one, such as query, key and value of an attention.

use burn::module::{Param, ParamId};
use burn::tensor::{Tensor, TensorData};

use super::{Source, Weights, WeightsError, transpose};

impl Weights {
    /// The matrix `name`, stored as `N` matrices `[out, in]` one below the other (`[N·out, in]`), as `N` frozen
    /// parameters `[in, out]`.
    ///
    /// The parameters have no key of their own in [`ParameterKeys`](super::ParameterKeys), so trained values could not be
    /// written back: this is for networks that are only read.
    ///
    /// # Errors
    ///
    /// As for [`Weights::parameter`].
    pub fn stacked_matrices<const N: usize>(
        &self,
        name: &str,
        [outputs, inputs]: [usize; 2],
    ) -> Result<[Param<Tensor<2>>; N], WeightsError> {
        let turn = |part: &[f32]| transpose(part, outputs);
        self.stacked(name, &[N * outputs, inputs], [inputs, outputs], turn)
    }

    /// The vector `name`, stored as `N` vectors of this length one after the other, as `N` frozen parameters.
    ///
    /// # Errors
    ///
    /// As for [`Weights::stacked_matrices`], whose reservation holds here too.
    pub fn stacked_vectors<const N: usize>(
        &self,
        name: &str,
        length: usize,
    ) -> Result<[Param<Tensor<1>>; N], WeightsError> {
        self.stacked(name, &[N * length], [length], <[f32]>::to_vec)
    }

    /// `N` equal parts of a tensor, each rearranged and given `shape`.
    fn stacked<const N: usize, const D: usize>(
        &self,
        name: &str,
        stored: &[usize],
        shape: [usize; D],
        rearrange: impl Fn(&[f32]) -> Vec<f32>,
    ) -> Result<[Param<Tensor<D>>; N], WeightsError> {
        if let Source::Blank = self.shared.source {
            self.note(name, stored);
            return Ok(std::array::from_fn(|_| self.blank_values(ParamId::new(), shape)));
        }
        let values = self.values(name, stored)?;
        let length: usize = shape.iter().product();
        Ok(std::array::from_fn(|part| {
            let part = rearrange(&values[part * length..(part + 1) * length]);
            let tensor = Tensor::from_data(TensorData::new(part, shape), self.device());
            Param::initialized(ParamId::new(), tensor)
        }))
    }
}
