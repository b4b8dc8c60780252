// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-proxmox is a plugin of kubectl for people who run Karpenter on
// Proxmox VE: put it into the PATH and call "kubectl proxmox".
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Karpenter's objects are known by being imported, ours from here on: whoever adds to
// the scheme later races with those who read it.
func init() { _ = v1alpha1.AddToScheme(scheme.Scheme) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// newRoot makes the command with all that are below it.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-proxmox",
		Short:         "Look into Karpenter on Proxmox VE",
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl proxmox"},
	}
	cluster := &kubeCluster{}
	flags := root.PersistentFlags()
	flags.StringVar(&cluster.kubeconfig, "kubeconfig", "", "path of the kubeconfig; KUBECONFIG or ~/.kube/config when absent")
	flags.StringVar(&cluster.context, "context", "", "context of the kubeconfig; the current one when absent")
	root.AddCommand(newPreflight(), newExplain(cluster), newOrphans(cluster), newRender(cluster), newHosts(), newInstanceTypes())
	return root
}

// kubeCluster is the Kubernetes cluster that the user's kubeconfig names.
type kubeCluster struct{ kubeconfig, context string }

func (k *kubeCluster) config() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: k.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig, %w", err)
	}
	return config, nil
}

// connect makes a client, and asks the API server for its version.
func (k *kubeCluster) connect() (client.Client, string, error) {
	config, err := k.config()
	if err != nil {
		return nil, "", err
	}
	kube, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return nil, "", fmt.Errorf("making the Kubernetes client, %w", err)
	}
	asked, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, "", fmt.Errorf("making the discovery client, %w", err)
	}
	version, err := asked.ServerVersion()
	if err != nil {
		return nil, "", fmt.Errorf("reading the API server's version, %w", err)
	}
	return kube, version.GitVersion, nil
}
