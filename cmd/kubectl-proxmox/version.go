// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

// versions are the versions of the plugin and of what it talks to.
type versions struct {
	Plugin     string `json:"plugin"`
	Controller string `json:"controller,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
}

func newVersion(cluster *kubeCluster) *cobra.Command {
	format := &output{}
	var clientOnly bool
	var name string
	command := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of the plugin, the controller and Kubernetes",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			found := versions{Plugin: operator.Version()}
			if !clientOnly {
				kube, version, err := cluster.connect()
				if err != nil {
					return fmt.Errorf("%w; for the version of the plugin only, use --client", err)
				}
				found.Kubernetes = version
				if controller, err := findController(command.Context(), kube, name); err != nil {
					found.Controller = fmt.Sprintf("not found: %v", err)
				} else {
					found.Controller = fmt.Sprintf("%s (Deployment %s)", controller.container.Image, controller)
				}
			}
			return format.print(command.OutOrStdout(), found, func(out io.Writer) error {
				text := "plugin:     " + found.Plugin + "\n"
				if !clientOnly {
					text += "controller: " + found.Controller + "\nkubernetes: " + found.Kubernetes + "\n"
				}
				_, err := io.WriteString(out, text)
				return err
			})
		},
	}
	command.Flags().StringVar(&name, "controller", "", "Deployment of the controller as NAMESPACE/NAME, if there are several")
	command.Flags().BoolVar(&clientOnly, "client", false, "show the version of the plugin only")
	format.flags(command)
	return command
}
