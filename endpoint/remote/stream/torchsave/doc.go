// Package torchsave reads and writes torch.save files with plain tensors. It executes nothing.
//
//	file, err := torchsave.Read(r, size, torchsave.Limits{})
//	entry, err := file.Tensor()       // a description, nothing is allocated yet
//	t, err := file.Load(dev, entry)   // the elements
//
// A torch.save file is a zip archive that contains a pickle, which is a program, and the storages that the pickle
// refers to. PyTorch runs the program. This package interprets only the instructions for plain tensors, numbers,
// strings, lists, tuples and dictionaries. Functions are looked up in a table of eight, which describe a tensor or an
// ordered dictionary. Other instructions and functions cause an error that names them.
//
// The package refuses the format used before PyTorch 1.6, which is not a zip archive. It also refuses sparse tensors,
// quantized tensors and tensors with Python attributes.
package torchsave
