// Command vad detects speech in a clip. It runs Silero VAD in plain Go on weights that another process owns: it
// attaches them in place, so any number of such processes share one copy.
//
//	vad --socket S --name NAME clip.wav       attaches to the model NAME of the owner on S
//	vad --weights FILE clip.wav               starts an owner for the weights in FILE
//
// It prints one probability for every 512 samples (32 ms), one on each line; with --json, an array. The clip is WAV: 16
// kHz, 16 bit, mono.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/examples/vad/silero"
	"github.com/sharedtensor/sharedtensor/examples/vad/wav"
	"github.com/sharedtensor/sharedtensor/module"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "vad:", err)
		os.Exit(1) // no deferred call has work left
	}
}

// options are the flags of the command.
type options struct {
	socket, name, weights string
	json                  bool
}

func command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:           "vad (--socket S --name NAME | --weights FILE) clip.wav",
		Short:         "Print the probability of speech in each 32 ms of a clip, on weights of another process",
		Example:       "  vad --weights silero_vad_16k.safetensors clip.wav\n  vad --socket /run/user/1000/shared-tensor-0.sock --name vad clip.wav",
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, args []string) error {
			return run(c.Context(), o, args[0], c.OutOrStdout())
		},
	}
	f := c.Flags()
	f.StringVar(&o.socket, "socket", "", "path of the owner's socket (default: the usual one)")
	f.StringVar(&o.name, "name", "", "name of the model at the owner")
	f.StringVar(&o.weights, "weights", "", "safetensors file to start an owner of its own with")
	f.BoolVar(&o.json, "json", false, "print one JSON array")
	c.MarkFlagsOneRequired("name", "weights")
	c.MarkFlagsMutuallyExclusive("name", "weights")
	c.MarkFlagsMutuallyExclusive("socket", "weights")
	return c
}

// run reads the clip, attaches the weights, and prints the network's output.
func run(ctx context.Context, o options, clipPath string, out io.Writer) error {
	clip, err := wav.ReadFile(clipPath, silero.SampleRate)
	if err != nil {
		return err
	}
	use := func(sd *module.StateDict) error {
		probabilities, err := detect(ctx, sd, clip)
		if err != nil {
			return err
		}
		return print(out, probabilities, o.json)
	}
	if o.weights != "" {
		return withOwner(ctx, o.weights, use)
	}
	return withAttached(ctx, o.socket, o.name, use)
}

// detect returns one probability for each chunk of the clip, the last one padded with silence.
func detect(ctx context.Context, sd *module.StateDict, clip *wav.Clip) ([]float32, error) {
	network, err := silero.New(sd)
	if err != nil {
		return nil, err
	}
	probabilities := make([]float32, 0, len(clip.Samples)/silero.ChunkSamples+1)
	chunk := make([]float32, silero.ChunkSamples)
	for at := 0; at < len(clip.Samples); at += silero.ChunkSamples {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		clip.Chunk(chunk, at)
		p, err := network.Process(chunk)
		if err != nil {
			return nil, err
		}
		probabilities = append(probabilities, p)
	}
	return probabilities, nil
}

// print writes the probabilities, as lines or as one JSON array.
func print(out io.Writer, probabilities []float32, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(probabilities)
	}
	w := bufio.NewWriter(out)
	for _, p := range probabilities {
		fmt.Fprintf(w, "%.6f\n", p)
	}
	return w.Flush()
}
