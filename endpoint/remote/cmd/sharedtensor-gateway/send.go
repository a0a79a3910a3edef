package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/torchsave"
	"github.com/sharedtensor/sharedtensor/module"
)

func newSendCommand() *cobra.Command {
	t := &transfer{}
	name := ""
	c := &cobra.Command{
		Use:   "send FILE",
		Short: "Publish the tensors of a file at the owner behind a gateway",
		Long: `Send a model to a gateway, whose owner publishes it: whole or not at all. A transfer that breaks off goes on where it was. FILE is a
safetensors file, or one of torch.save (.pt, .pth, .bin) with a tensor or a state dict, which is read without executing anything.

Where the owner is on this host, its memory is shared in place and no byte goes over the network.`,
		Example: `  sharedtensor-gateway send silero.safetensors --to gpu7:50051 --tls --token "$TOKEN"
  sharedtensor-gateway send checkpoint.pt --name policy`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if name == "" {
				name = strings.TrimSuffix(filepath.Base(args[0]), filepath.Ext(args[0]))
			}
			begin := time.Now()
			l, err := t.open(c.Context(), c.ErrOrStderr())
			if err != nil {
				return err
			}
			defer l.close()
			sd, err := loadFile(c.Context(), args[0], l.device)
			if err != nil {
				return err
			}
			defer sd.Close()
			version, err := l.publish(c.Context(), name, sd)
			if err != nil {
				return err
			}
			return printTransfer(c.OutOrStdout(), t.json, transferred{name, version, sd.Len(), sd.Bytes(), l.way(), time.Since(begin).Seconds()}, "published")
		},
	}
	t.add(c, "to")
	c.Flags().StringVar(&name, "name", "", "name of the model (default: name of the file)")
	return c
}

// publish publishes a model at the owner, through its socket or through the gateway.
func (l *link) publish(ctx context.Context, name string, sd *module.StateDict) (uint64, error) {
	if l.owner != nil {
		return l.owner.Publish(ctx, name, sd, endpoint.PublishOptions{})
	}
	receipt, err := l.client.Put(ctx, &stream.Set{Name: name, Tensors: sd})
	if err != nil {
		return 0, err
	}
	return receipt.Version, nil
}

// loadFile reads a file of tensors in the format of its suffix.
func loadFile(ctx context.Context, path string, dev driver.Device) (*module.StateDict, error) {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".safetensors":
		return module.Load(ctx, dev, path, module.LoadOptions{})
	case ".pt", ".pth", ".bin":
		return loadTorch(path, dev)
	}
	return nil, usageError{fmt.Errorf("%s: %w", path, errSuffix)}
}

func loadTorch(path string, dev driver.Device) (_ *module.StateDict, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	saved, err := torchsave.Read(file, info.Size(), torchsave.Limits{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	named, err := saved.Tensors()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	sd := module.NewStateDict()
	for _, n := range named {
		t, err := saved.Load(dev, n.Entry)
		if err == nil {
			if n.Name == "" {
				n.Name = "tensor" // the file has no name for its single tensor
			}
			err = sd.Set(n.Name, t)
		}
		if err != nil {
			sd.Close()
			return nil, fmt.Errorf("%s: tensor %q: %w", path, n.Name, err)
		}
	}
	return sd, nil
}

// transferred is the result of send and receive.
type transferred struct {
	Name    string  `json:"name"`
	Version uint64  `json:"version"`
	Tensors int     `json:"tensors"`
	Bytes   int64   `json:"bytes"`
	Way     string  `json:"way"`
	Seconds float64 `json:"seconds"`
}

func printTransfer(w io.Writer, asJSON bool, t transferred, verb string) error {
	if asJSON {
		return json.NewEncoder(w).Encode(t)
	}
	_, err := fmt.Fprintf(w, "%s %s version %d: %d tensors, %d bytes in %.2f s (%s)\n", verb, t.Name, t.Version, t.Tensors, t.Bytes, t.Seconds, t.Way)
	return err
}
