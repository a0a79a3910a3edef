package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream"
	"github.com/sharedtensor/sharedtensor/module"
)

func newReceiveCommand() *cobra.Command {
	t := &transfer{}
	request := stream.Request{}
	c := &cobra.Command{
		Use:   "receive FILE",
		Short: "Write a model of the owner behind a gateway to a safetensors file",
		Long: `Fetch a model from a gateway and write it to a safetensors file, which is there whole or not at all. A transfer that breaks off goes on
where it was.

Where the owner is on this host, the file is written from its memory and no byte goes over the network.`,
		Example: `  sharedtensor-gateway receive silero.safetensors --from gpu7:50051 --tls --token "$TOKEN"
  sharedtensor-gateway receive first.safetensors --name policy --version 3 --tensor layers.0.weight`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			if filepath.Ext(args[0]) != ".safetensors" {
				return usageError{fmt.Errorf("%s: the name of the output file must end in .safetensors", args[0])}
			}
			if request.Name == "" {
				request.Name = strings.TrimSuffix(filepath.Base(args[0]), ".safetensors")
			}
			begin := time.Now()
			l, err := t.open(c.Context(), c.ErrOrStderr())
			if err != nil {
				return err
			}
			defer l.close()
			set, err := l.fetch(c.Context(), request)
			if err != nil {
				return err
			}
			defer set.Close()
			if err := module.Save(c.Context(), args[0], set.Tensors, module.SaveOptions{}); err != nil {
				return err
			}
			sd := set.Tensors
			return printTransfer(c.OutOrStdout(), t.json, transferred{set.Name, set.Version, sd.Len(), sd.Bytes(), l.way(), time.Since(begin).Seconds()}, "received")
		},
	}
	t.add(c, "from")
	c.Flags().StringVar(&request.Name, "name", "", "name of the model (default: name of the file)")
	c.Flags().Uint64Var(&request.Version, "version", 0, "version of the model; 0 means the newest")
	c.Flags().StringArrayVar(&request.Tensors, "tensor", nil, "name of a tensor, repeatable (default: all tensors)")
	return c
}

// fetch returns a model, from the owner's memory or through the gateway.
func (l *link) fetch(ctx context.Context, request stream.Request) (*stream.Set, error) {
	if l.owner == nil {
		return l.client.Get(ctx, request)
	}
	models := &stream.Models{Client: func() (*endpoint.Client, error) { return l.owner, nil }}
	return models.Set(ctx, request)
}
