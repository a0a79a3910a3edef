package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// getFlags holds the flags of the command get.
type getFlags struct {
	owner   *cli.OwnerFlags
	output  string
	version uint64
	ties    bool
	device  string // that requires a placement; empty for where the model is
}

func newGetCommand() *cobra.Command {
	var o getFlags
	c := &cobra.Command{
		Use:   "get [flags] NAME -o FILE",
		Short: "Attach a model and write it to a file",
		Long: `Attach a published model and write its tensors, byte for byte, to a safetensors or GGUF file. The name of FILE selects
the format: .safetensors or .gguf. With another name, and on standard output, a model that the owner loaded from GGUF is
written as GGUF, with its metadata; others as safetensors. The model is read in place from the owner's memory. An existing
FILE is replaced once the new one is complete, and is unchanged on failure. Use - for standard output.`,
		Example: `  sharedtensor get llm -o copy.safetensors
  sharedtensor get qwen -o copy.gguf
  sharedtensor get llm --version 3 -o v3.safetensors
  sharedtensor get llm --device cuda:0 -o from-gpu.safetensors
  sharedtensor get llm -o - | sha256sum`,
		Args: cli.Exactly("NAME"),
		RunE: func(c *cobra.Command, words []string) error {
			if o.output == "" {
				return cli.Usagef(c, "-o FILE is missing")
			}
			if o.output == standardOutput && term.IsTerminal(c.OutOrStdout()) {
				return cli.Usagef(c, "-o -: standard output is a terminal: redirect it")
			}
			return get(c, o, words[0])
		},
	}
	o.owner = cli.AddOwnerFlags(c)
	c.ValidArgsFunction = cli.CompleteNames(o.owner, 1)
	c.Flags().StringVarP(&o.output, "output", "o", "", "file to write")
	c.Flags().Uint64Var(&o.version, "version", 0, "version to write; 0 means the newest")
	placeDeviceFlag(c, &o.device, "attach the model on this device (host or cuda:N); the owner copies it there (serve --place)")
	c.Flags().BoolVar(&o.ties, "python-ties", false, "also record tied names in the metadata, as Python's load_model expects")
	return c
}

// standardOutput is the file name for standard output.
const standardOutput = "-"

// get attaches a model and writes it to a file.
func get(c *cobra.Command, o getFlags, name string) error {
	return withModel(c.Context(), o.owner, name, o.version, o.device, func(h *endpoint.Handle) error {
		sd, start := h.StateDict(), time.Now()
		meter := term.NewMeter(c.ErrOrStderr(), "writing", "wrote", o.output)
		opts, said, err := module.SaveOptions{PythonTies: o.ties, Progress: meter.Update}, c.OutOrStdout(), error(nil)
		if o.output == standardOutput {
			said = c.ErrOrStderr()
			err = module.SaveTo(c.Context(), c.OutOrStdout(), sd, opts)
		} else {
			err = module.Save(c.Context(), o.output, sd, opts)
		}
		meter.Close()
		if errors.Is(err, safetensors.ErrNotRegular) {
			err = fmt.Errorf("%w; -o - writes to standard output", err)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(said, "wrote %s: %s version %d, %s, %s in %s\n", term.Printable(o.output), term.Printable(name), h.Version(),
			term.Count(sd.Len(), "tensor"), term.FormatBytes(sd.Bytes()), term.FormatDuration(time.Since(start)))
		return err
	})
}

// withModel attaches a version of a model, 0 for the newest, calls use, and closes the handle. A device that is not empty
// requires a placement there.
func withModel(ctx context.Context, o *cli.OwnerFlags, name string, version uint64, device string, use func(*endpoint.Handle) error) (err error) {
	var devices []driver.Device
	opts := endpoint.AcquireOptions{Version: version}
	if device == "" {
		devices, err = devicesOf(ctx, o, name, version)
	} else if opts.Device, err = cli.OpenDevice(device); err == nil {
		devices = append(devices, opts.Device)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cli.CloseDevices(devices)) }()
	client, err := o.Dial(ctx, devices...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	h, err := acquire(ctx, o, client, name, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	return use(h)
}

func acquire(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, name string, opts endpoint.AcquireOptions) (*endpoint.Handle, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	return loaded(ctx, o, func() (*endpoint.Handle, error) {
		return client.Acquire(ctx, name, opts)
	})
}

// askAgain is the interval for polling a model that is still loading.
const askAgain = 50 * time.Millisecond

// loaded calls ask until the model is loaded. Without --wait, it fails at once with an error that names the flag.
func loaded[T any](ctx context.Context, o *cli.OwnerFlags, ask func() (T, error)) (T, error) {
	for {
		got, err := ask()
		switch {
		case !errors.Is(err, endpoint.ErrLoading):
			return got, err
		case !o.Wait:
			return got, fmt.Errorf("%w; --wait waits for it", err)
		case !pause(ctx, askAgain):
			return got, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// devicesOf opens the devices of a version's tensors according to its manifest. A client needs them before it connects.
func devicesOf(ctx context.Context, o *cli.OwnerFlags, name string, version uint64) (devices []driver.Device, err error) {
	err = o.WithOwner(ctx, func(ctx context.Context, client *endpoint.Client) error {
		ctx, cancel := o.Bounded(ctx)
		defer cancel()
		m, err := loaded(ctx, o, func() (*module.Manifest, error) { return client.Manifest(ctx, name, version) })
		if err != nil {
			return withPublished(ctx, client, name, err)
		}
		devices, err = cli.OpenDevicesFor(m.Storages)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, cli.CloseDevices(devices))
	}
	return devices, nil
}
