package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// settings holds the configuration of the gateway and its components, bound to flags.
type settings struct {
	config     gateway.Config
	components []gateway.Component
	file       string
	set        *pflag.FlagSet
}

// addSettings adds all flags to a command.
func addSettings(c *cobra.Command) *settings {
	s := &settings{config: gateway.DefaultConfig(), components: newComponents(), set: pflag.NewFlagSet("settings", pflag.ContinueOnError)}
	s.config.Flags(s.set)
	for _, component := range s.components {
		if own, ok := component.(gateway.Configurer); ok {
			own.Flags(s.set)
		}
	}
	s.set.SortFlags = false
	c.Flags().AddFlagSet(s.set)
	c.Flags().SortFlags = false
	c.Flags().StringVar(&s.file, "config", os.Getenv(gateway.EnvPrefix+"CONFIG"), "YAML file of settings, whose keys are flag names")
	return s
}

// load sets flags that are not on the command line from the environment, otherwise from the file.
func (s *settings) load() ([]gateway.Setting, error) {
	return gateway.ApplySettings(s.set, os.LookupEnv, s.file)
}

// options checks the settings and returns the gateway's options.
func (s *settings) options() (gateway.Options, error) {
	if _, err := s.load(); err != nil {
		return gateway.Options{}, usageError{err}
	}
	return gateway.Options{Config: s.config, Components: s.components, Version: version()}, nil
}
