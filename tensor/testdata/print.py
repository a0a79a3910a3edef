# Writes print.jsonl: what PyTorch prints for random tensors. Run with any PyTorch from 1.13 on:
#   python3 print.py > print.jsonl
import base64, json, random, torch

random.seed(31)
torch.manual_seed(31)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
          torch.bool, torch.complex64, torch.complex128]
SHAPES = [(), (1,), (2,), (7,), (17,), (18,), (19,), (40,), (0,), (2, 0), (1, 1), (2, 3), (2, 20), (3, 18), (2, 2, 3), (1, 2, 1, 3), (5, 1),
          (3, 1, 25)]
LARGE = [(1001,), (40, 30), (2, 600), (9, 9, 13), (2, 2, 2, 130)]  # whose middle is left out


def part(shape, style):
    x = torch.randn(shape, dtype=torch.float64)
    if style == "whole":
        x = (x * random.choice([3, 40, 300, 1e6, 1e9])).round()
    elif style == "wide":
        x = x * torch.pow(10.0, torch.randint(-7, 9, shape, dtype=torch.float64))
    elif style == "small":
        x = x * 1e-5
    elif style == "zeros":
        x = x * 0
    elif style == "large":
        x = x * random.choice([100, 1e4])
    if style == "odd" or random.random() < 0.2:
        flat = x.reshape(-1)
        for i in range(flat.numel()):
            if random.random() < 0.4:
                flat[i] = random.choice([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0])
        x = flat.reshape(shape)
    return x


def sample(dtype, shape, style):
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    if dtype.is_complex:
        return torch.complex(part(shape, style), part(shape, random.choice(["plain", "whole", style]))).to(dtype)
    x = part(shape, style)
    if not dtype.is_floating_point:
        top = random.choice([9, 100, torch.iinfo(dtype).max])
        return torch.randint(0 if dtype == torch.uint8 else -min(top, 2**40), min(top, 2**40), shape).to(dtype)
    return x.to(dtype)


def raw(x):
    if x.dtype == torch.bfloat16:
        x = x.view(torch.int16)
    return base64.b64encode(x.numpy().tobytes()).decode()


for n in range(600):
    dtype, shape = DTYPES[n % len(DTYPES)], random.choice(SHAPES)
    if n % 25 == 0:
        dtype, shape = random.choice([torch.float16, torch.int8, torch.bool, torch.float32]), random.choice(LARGE)
    x = sample(dtype, shape, random.choice(["plain", "whole", "wide", "small", "zeros", "large", "odd"]))
    print(json.dumps({"dtype": str(dtype)[6:], "shape": shape, "data": raw(x), "text": str(x)}))
