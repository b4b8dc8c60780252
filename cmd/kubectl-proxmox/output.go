// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// output is the format of a command's output: text, or data for scripts.
type output struct{ format string }

// outputFormats are the values of --output.
var outputFormats = []string{"json", "yaml"}

func (o *output) flags(command *cobra.Command) {
	command.Flags().StringVarP(&o.format, "output", "o", "", "format of the output: json or yaml (default text)")
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputFormats, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	run := command.RunE
	command.RunE = func(command *cobra.Command, args []string) error {
		switch o.format {
		case "", "json", "yaml":
			return run(command, args)
		}
		return fmt.Errorf("--output is %q: want json or yaml", o.format)
	}
}

// isText reports whether the output is text.
func (o *output) isText() bool { return o.format == "" }

// print writes data in the format, or the text if there is none.
func (o *output) print(out io.Writer, data any, text func(io.Writer) error) error {
	var content []byte
	var err error
	switch o.format {
	case "json":
		if content, err = json.MarshalIndent(data, "", "  "); err == nil {
			content = append(content, '\n')
		}
	case "yaml":
		content, err = yaml.Marshal(data)
	default:
		return text(out)
	}
	if err != nil {
		return fmt.Errorf("encoding the output: %w", err)
	}
	_, err = out.Write(content)
	return err
}

// printRows writes rows in the format. As text they are a table, or the text none if there
// are no rows.
func printRows[T any](o *output, out io.Writer, rows []T, none, header string, row func(T) string) error {
	return o.print(out, rows, func(out io.Writer) error {
		if len(rows) == 0 {
			_, err := fmt.Fprintln(out, none)
			return err
		}
		return table(out, header, func(out io.Writer) {
			for _, r := range rows {
				fmt.Fprintln(out, row(r))
			}
		})
	})
}

// table writes rows below a header.
func table(out io.Writer, header string, rows func(io.Writer)) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(w, header)
	rows(w)
	return w.Flush()
}
