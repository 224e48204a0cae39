// One step of an optimizer. The order of operations is that of src/optim in the crate kernels, and the
// results have the same bits, so fused multiply-add is off in the compiler. float16 and bfloat16 weights are
// updated in float, or through a float master copy.

struct Step { double rate, decay, rescale, clip, first, second, epsilon, bound; };

enum Rule { PLAIN, MOMENTUM, NESTEROV, TEST, ADAM, ADAGRAD, RMSPROP, CENTERED };

template <typename R> static __device__ __forceinline__ R clipped(R value, R limit) {
    return value > limit ? limit : value < -limit ? -limit : value;
}

static __device__ __forceinline__ float root(float value) { return sqrtf(value); }
static __device__ __forceinline__ double root(double value) { return sqrt(value); }

template <typename W, typename R>
static __device__ __forceinline__ R next(const Step& step, int rule, R w, R g, R* slot0, R* slot1,
                                             R* slot2, u64 i) {
    R rate = (R)step.rate, decay = (R)step.decay, rescale = (R)step.rescale, clip = (R)step.clip;
    if (rule == ADAM) {
        R beta1 = (R)step.first, beta2 = (R)step.second, epsilon = (R)step.epsilon;
        R gradient = clipped<R>(g * rescale + decay * w, clip);
        R mean = beta1 * slot0[i] + ((R)1 - beta1) * gradient;
        R variance = beta2 * slot1[i] + ((R)1 - beta2) * gradient * gradient;
        slot0[i] = mean;
        slot1[i] = variance;
        return w - rate * mean / (root(variance) + epsilon);
    }
    if (rule == ADAGRAD) {
        R gradient = clipped<R>(g * rescale, clip);
        R squares = slot0[i] + gradient * gradient;
        slot0[i] = squares;
        return w - rate * (gradient / root(squares + (R)step.epsilon) + w * decay);
    }
    if (rule == RMSPROP || rule == CENTERED) {
        R gamma1 = (R)step.first, gamma2 = (R)step.second, epsilon = (R)step.epsilon, bound = (R)step.bound;
        R gradient = clipped<R>(g * rescale + decay * w, clip);
        if (rule == RMSPROP) {
            R square = ((R)1 - gamma1) * (gradient * gradient) + gamma1 * slot0[i];
            slot0[i] = square;
            return clipped<R>(w - rate * (gradient / root(square + epsilon)), bound);
        }
        R square = ((R)1 - gamma1) * gradient * gradient + gamma1 * slot0[i];
        R mean = ((R)1 - gamma1) * gradient + gamma1 * slot1[i];
        R delta = gamma2 * slot2[i] - rate * gradient / root(square - mean * mean + epsilon);
        slot0[i] = square;
        slot1[i] = mean;
        slot2[i] = delta;
        return clipped<R>(w + delta, bound);
    }
    if (rule == TEST) {
        R moved = w + g * rescale;
        slot0[i] = (R)Element<W>::load(Element<W>::store(moved));
        return moved;
    }
    R momentum = (R)step.first;
    if (rule == NESTEROV) {
        R gradient = clipped<R>(g * rescale, clip);
        R kept = momentum * slot0[i];
        R moved = w - kept + (momentum + (R)1) * (kept - rate * (gradient + decay * w));
        slot0[i] = kept - rate * (gradient + decay * moved);
        return moved;
    }
    // An infinite limit means no limit.
    bool is_clipped = step.clip <= 1.7976931348623157e308;
    R part = is_clipped ? rate * clipped<R>(g * rescale, clip) : rate * rescale * g;
    R moved = momentum * (rule == MOMENTUM ? slot0[i] : (R)0) - rate * decay * w - part;
    if (rule == MOMENTUM) slot0[i] = moved;
    return w + moved;
}

#define UPDATE(NAME, T) \
    extern "C" __global__ void update_##NAME(T* weight, const T* gradient, Element<T>::Real* slot0, \
                                             Element<T>::Real* slot1, Element<T>::Real* slot2, Step step, int rule, u64 len) { \
        for (u64 i = first_index(); i < len; i += stride()) { \
            weight[i] = Element<T>::store(next<T, Element<T>::Real>( \
                step, rule, Element<T>::load(weight[i]), Element<T>::load(gradient[i]), slot0, slot1, slot2, i)); \
        } \
    }

#define UPDATE_MASTER(NAME, T) \
    extern "C" __global__ void update_##NAME##_master(T* weight, const T* gradient, float* slot0, float* slot1, \
                                                      float* slot2, float* master, Step step, int rule, int fresh, u64 len) { \
        for (u64 i = first_index(); i < len; i += stride()) { \
            float w = fresh ? Element<T>::load(weight[i]) : master[i]; \
            w = next<float, float>(step, rule, w, Element<T>::load(gradient[i]), slot0, slot1, slot2, i); \
            master[i] = w; \
            weight[i] = Element<T>::store(w); \
        } \
    }

UPDATE(f32, float)
UPDATE(f64, double)
UPDATE(f16, F16)
UPDATE(bf16, BF16)
UPDATE_MASTER(f16, F16)
UPDATE_MASTER(bf16, BF16)
