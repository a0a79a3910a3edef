// Package torchsave reads and writes the files of torch.save that hold plain tensors, and executes nothing.
//
//	file, err := torchsave.Read(r, size, torchsave.Limits{})
//	entry, err := file.Tensor()       // a description: nothing is allocated yet
//	t, err := file.Load(dev, entry)   // its elements
//
// A file of torch.save is a zip archive with a pickle, which is a program, and the storages that the program refers to.
// PyTorch runs the program. This package interprets the few instructions that plain tensors, numbers, strings, lists,
// tuples and dictionaries are made of; functions that it names are looked up in a table of eight, which describe a
// tensor or an ordered dictionary. Any other instruction or function is an error that names it.
//
// The format of PyTorch before 1.6, which is no zip archive, is refused, and so are sparse and quantized tensors, and
// those with Python objects in them.
package torchsave
