package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/bins/binsgate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computegate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/inference"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/jsonrpc"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/mirrorgate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/stream/streamgate"
	"github.com/sharedtensor/sharedtensor/internal/logs"
)

func newServeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve the tensors and functions of an owner to other hosts",
		Long: `Attach to the owner on its socket and serve it over HTTP, gRPC and NATS until SIGINT or SIGTERM. Requests in flight may then
end. The gateway starts without an owner and waits for it. While there is none, requests fail and /readyz reports it.

Each flag can be an environment variable (--max-request is SHAREDTENSOR_MAX_REQUEST) or a line of a YAML file (max-request: 64MiB,
see --config). The command line overrides the environment, which overrides the file.

Listeners use the loopback interface by default. Others require TLS (--tls-cert, --tls-key) and tokens or client certificates
(--token-file, --client-ca), or --insecure.

SIGHUP opens the files of --audit and --access-log again. The files of tokens, certificates and policies need no
signal: they are read again when they change. A log that is not read does not delay the gateway: lines are dropped and counted in
sharedtensor_gateway_log_lines_lost_total.`,
		Example: `  sharedtensor-gateway serve
  sharedtensor-gateway serve --http 0.0.0.0:2537 --tls-cert cert.pem --tls-key key.pem --token-file tokens
  SHAREDTENSOR_NATS=nats://cluster:4222 sharedtensor-gateway serve --config gateway.yaml`,
		Args: noArguments,
	}
	s := addSettings(c)
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		opts, err := s.options()
		if err != nil {
			return err
		}
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a log without a reader must not end the gateway
		log := logs.NewWriter(c.ErrOrStderr())
		defer log.Close(lastLines)
		opts.LogLost = log.Lost
		if opts.Logger, err = opts.Config.NewLogger(log); err != nil {
			return usageError{err}
		}
		devices, closeDevices, err := openDevices()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, closeDevices()) }()
		opts.Devices = devices
		g, err := gateway.New(opts)
		if err != nil {
			return usageError{err}
		}
		reopen := make(chan os.Signal, 1)
		signal.Notify(reopen, syscall.SIGHUP)
		ended := make(chan struct{})
		defer close(ended)
		defer signal.Stop(reopen)
		go func() {
			select {
			case <-g.Ready(): // the files are open
			case <-ended:
				return
			}
			for {
				select {
				case <-reopen:
					g.Reopen()
				case <-ended:
					return
				}
			}
		}()
		return g.Run(c.Context())
	}
	return c
}

func noArguments(c *cobra.Command, words []string) error {
	if err := cobra.NoArgs(c, words); err != nil {
		return usageError{err}
	}
	return nil
}

// newComponents returns the program's components in registration order.
func newComponents() []gateway.Component {
	files := &models.Component{}
	return []gateway.Component{
		files,
		&jsonrpc.Component{Models: files},
		binsgate.New(),
		streamgate.New(),
		computegate.New(),
		inference.New(),
		mirrorgate.New(),
	}
}

// openDevices opens host memory and the GPUs of this machine, if any.
func openDevices() (devices []driver.Device, closeAll func() error, err error) {
	dev, err := host.Open()
	if err != nil {
		return nil, nil, err
	}
	devices = append([]driver.Device{dev}, openCUDA()...)
	return devices, func() error {
		var errs []error
		for _, d := range devices {
			errs = append(errs, d.Close())
		}
		return errors.Join(errs...)
	}, nil
}
