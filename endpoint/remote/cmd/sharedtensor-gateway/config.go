package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

func newConfigCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Inspect the configuration"}
	c.AddCommand(newConfigCheckCommand())
	return c
}

func newConfigCheckCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "check [flags]",
		Short: "Check the configuration and print the effective settings",
		Long: `Take the same flags, environment and file as serve, say everything that is wrong with them, and print each setting with where
it comes from. Certificates and tokens are read; nothing is opened or started.`,
		Example: `  sharedtensor-gateway config check --config gateway.yaml
  sharedtensor-gateway config check --json --http 0.0.0.0:2537`,
		Args: noArguments,
	}
	s := addSettings(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		all, err := s.load()
		if err != nil {
			return usageError{err}
		}
		if err := printSettings(c.OutOrStdout(), all, asJSON); err != nil {
			return err
		}
		opts, err := s.options()
		if err != nil {
			return err
		}
		if _, err := gateway.New(opts); err != nil {
			return usageError{err}
		}
		return nil
	}
	return c
}

func printSettings(w io.Writer, all []gateway.Setting, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SETTING\tVALUE\tFROM")
	for _, s := range all {
		value := s.Value
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Name, value, s.Origin)
	}
	return t.Flush()
}
