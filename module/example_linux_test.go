package module_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// A state dict is created in one slab of shared memory, filled, saved, and loaded again. Notes and the compatibility
// key are kept in files and passed to readers.
func Example() {
	ctx := context.Background()
	dev, err := host.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	dir, err := os.MkdirTemp("", "module")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	sd, err := module.New(dev, []module.NamedSpec{
		{Name: "weight", DType: tensor.BFloat16, Shape: tensor.Shape{2, 3}},
		{Name: "running_mean", DType: tensor.Float32, Shape: tensor.Shape{3}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sd.Close()
	weight, _ := sd.Get("weight")
	if err := errors.Join(weight.Fill(0.5), sd.SetNote("running_mean", module.NoteBuffer)); err != nil {
		log.Fatal(err)
	}
	sd.SetCompatibility("bf16 tp=1")
	path := filepath.Join(dir, "model.safetensors")
	if err := module.Save(ctx, path, sd, module.SaveOptions{}); err != nil {
		log.Fatal(err)
	}

	loaded, err := module.Load(ctx, dev, path, module.LoadOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer loaded.Close()
	for name, x := range loaded.All() {
		fmt.Printf("%s %v %v %q\n", name, x.DType(), x.Shape(), loaded.Note(name))
	}
	fmt.Println(len(loaded.Storages()), "slab, made for", loaded.Compatibility())
	// Output:
	// running_mean float32 [3] "buffer"
	// weight bfloat16 [2, 3] ""
	// 1 slab, made for bf16 tp=1
}
