package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
)

// mirrorCommand holds the settings of `mirror`.
type mirrorCommand struct {
	options       mirror.Options
	socket        string
	follow, json  bool
	maxModel      gateway.ByteSize
	rangeSize     gateway.ByteSize
	digest        string
	ca, cert, key string
	peers         mirrorPeers
}

func newMirrorCommand() *cobra.Command {
	m := &mirrorCommand{maxModel: mirror.DefaultMaxBytes, rangeSize: mirror.DefaultRangeBytes}
	c := &cobra.Command{
		Use:   "mirror SOURCE",
		Short: "Mirror a model from another host or store to the local owner",
		Long: `Fetch a model into shared memory and publish it at the owner on this host, as the version beside the one before: whole, with all digests
compared that the source has, or not at all. What the owner has already is copied from it. A transfer that breaks off goes on where it was.
SOURCE is one of

  https://HOST:2537/NAME[@VERSION]       a model of another gateway
  file:///PATH                           a .safetensors file, an index, or a folder that holds either
  hf://ORG/MODEL[@REVISION]              the Hugging Face hub, and its local cache first (HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE)
  oci://HOST/REPOSITORY[:TAG|@DIGEST]    ModelPack's and Docker's layers of raw .safetensors files; as docker login left its credentials
  s3://BUCKET/KEY                        a file or a folder (AWS_ACCESS_KEY_ID and so on, AWS_REGION, AWS_ENDPOINT_URL)

With --nats, mirrors of one gateway's model take from each other, so that its link carries the model little more than once: this one gives what it
has to others, also while it comes, as long as it runs.

With --follow it stays, and mirrors each newest version of the source until SIGINT or SIGTERM. If the source or the owner leaves, it waits for its return.`,
		Example: `  sharedtensor-gateway mirror https://gpu7:2537/llm --token "$TOKEN"
  sharedtensor-gateway mirror https://gpu7:2537/llm@3 --as llm-candidate --digest "$SHA256"
  sharedtensor-gateway mirror https://gpu7:2537/llm --nats nats://cluster:4222 --follow
  sharedtensor-gateway mirror hf://openai-community/gpt2 --as gpt2
  sharedtensor-gateway mirror oci://ghcr.io/org/llm:v3 --follow
  sharedtensor-gateway mirror http://localhost:2537/policy --owner /run/second/owner-0.sock --follow --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(c *cobra.Command, args []string) error {
			m.options.Source = args[0]
			return m.run(c.Context(), c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&m.options.Name, "as", "", "name of the model at the local owner (default: name at the source)")
	f.BoolVar(&m.follow, "follow", false, "keep running and mirror each new version")
	f.StringVar(&m.socket, "owner", "", "socket of the local owner (default: the default socket)")
	f.StringVar(&m.options.Token, "token", os.Getenv("SHAREDTENSOR_TOKEN"), "token for the source (default: SHAREDTENSOR_TOKEN)")
	f.BoolVar(&m.options.PlainToken, "insecure-token", false, "send the token without TLS also to another host, where the network can read it")
	f.StringVar(&m.ca, "tls-ca", "", "PEM file of the certificate authority that signed the source's certificate")
	f.StringVar(&m.cert, "tls-cert", "", "PEM file of a client certificate")
	f.StringVar(&m.key, "tls-key", "", "PEM file of its key")
	f.StringVar(&m.digest, "digest", "", "digest of the model as a mirror prints it, HEX of SHA-256 or blake3:HEX; another model is refused")
	f.BoolVar(&m.options.Digests, "digests", false, "compute the digest of the model also if the source is not a gateway; implied by --digest")
	f.Var(&m.maxModel, "max-model", "maximum size of the model")
	f.DurationVar(&m.options.Poll, "poll", mirror.DefaultPoll, "interval at which --follow checks a source that is not a gateway")
	f.IntVar(&m.options.Connections, "connections", mirror.DefaultConnections, "concurrent range requests")
	f.Var(&m.rangeSize, "range", "bytes of a range")
	f.DurationVar(&m.options.Stall, "stall", mirror.DefaultStall, "how long the source may send nothing before it is asked again")
	f.DurationVar(&m.options.Patience, "patience", mirror.DefaultPatience, "how long a source that cannot be reached is asked again; with --follow for ever")
	f.BoolVar(&m.json, "json", false, "print what goes on as JSON, one object a line")
	m.peers.flags(f)
	return c
}

// run mirrors until it is complete or the command is interrupted.
func (m *mirrorCommand) run(ctx context.Context, out, progress io.Writer) (err error) {
	if err := m.check(); err != nil {
		return err
	}
	m.options.Events = m.printer(out, progress)
	device, err := host.Open(host.Lazy()) // received bytes fault in its pages
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	pool := host.NewPool(device, host.PoolOptions{}) // each version reuses the memory of the one before the last
	defer func() { err = errors.Join(err, pool.Close()) }()
	attach, cancel := context.WithTimeout(ctx, m.options.Patience)
	defer cancel()
	if m.follow {
		attach = ctx
	}
	owner, err := endpoint.Dial(attach, endpoint.ClientOptions{
		Socket: m.socket, Devices: []driver.Device{device}, Label: "sharedtensor-gateway mirror", Wait: m.follow,
	})
	if err != nil {
		return fmt.Errorf("the owner on this host: %w", err)
	}
	defer func() { err = errors.Join(err, owner.Close()) }()
	m.options.Owner, m.options.Device = owner, pool
	defer m.peers.close()
	if err := m.peers.open(m.options.Token, m.options.TLS); err != nil {
		return err
	}
	m.options.Peers = m.peers.peers
	one, err := mirror.New(m.options)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, one.Close()) }()
	if !m.follow {
		_, err = one.Pull(ctx)
		return err
	}
	if err := one.Follow(ctx); ctx.Err() == nil {
		return err
	}
	return nil // interrupted
}

// check validates what flag parsing does not.
func (m *mirrorCommand) check() error {
	m.options.MaxBytes, m.options.RangeBytes = int64(m.maxModel), int64(m.rangeSize)
	if err := m.peers.check(m.options.Token); err != nil {
		return err
	}
	if m.ca != "" || m.cert != "" || m.key != "" {
		config, err := (&transfer{ca: m.ca, clientCert: m.cert, clientKey: m.key}).tlsConfig()
		if err != nil {
			return err
		}
		m.options.TLS = config
	}
	if m.digest == "" {
		return nil
	}
	digest, err := modelwire.ParseDigest(m.digest)
	if err != nil {
		return usageError{fmt.Errorf("--digest: %w", err)}
	}
	m.options.Digest = digest
	return nil
}

// printer returns a function that prints events: as JSON to out, or versions to out and progress to a terminal.
func (m *mirrorCommand) printer(out, progress io.Writer) func(mirror.Event) {
	if m.json {
		encoder := json.NewEncoder(out)
		return func(e mirror.Event) { _ = encoder.Encode(e) } // best effort: the reader may have closed its end
	}
	bar := func(int64, int64) {}
	begun := false // a progress line is on the terminal
	return func(e mirror.Event) {
		switch e.Kind {
		case mirror.EventFound:
			if bar = showProgress(progress); bar == nil {
				bar = func(int64, int64) {}
			}
		case mirror.EventProgress:
			begun = e.Done < e.Total
			bar(e.Done, e.Total)
		case mirror.EventRetry:
			if begun {
				fmt.Fprintln(progress)
			}
			fmt.Fprintf(progress, "trying again: %s\n", e.Error)
		case mirror.EventPublished, mirror.EventUnchanged:
			printMirrored(out, e.Result)
		}
	}
}

func printMirrored(w io.Writer, r *mirror.Result) {
	verb := "published"
	if r.Unchanged {
		verb = "unchanged:"
	}
	from := fmt.Sprintf("version %d of %s", r.SourceVersion, r.Source)
	if r.Revision != "" {
		from = r.Revision
	}
	digest := ""
	if r.Digest != "" {
		digest = " (sha256 " + r.Digest + ")"
	}
	fmt.Fprintf(w, "%s %s version %d: %s, %d tensors, %d bytes, of which %d came over the network in %v%s\n",
		verb, r.Name, r.Version, from, r.Tensors, r.Bytes, r.Moved, time.Duration(r.Seconds*float64(time.Second)).Round(time.Millisecond), digest)
}
