// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-proxmox is a kubectl plugin for administrators of Karpenter on
// Proxmox VE. To use it, add it to the PATH and run "kubectl proxmox".
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Importing Karpenter adds its kinds to the scheme. An init function adds those of the
// provider, because a later write would race with readers of the scheme.
func init() { _ = v1alpha1.AddToScheme(scheme.Scheme) }

func main() {
	// Without a logger, controller-runtime prints a stack trace after half a minute, which would
	// destroy the terminal view.
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(completionArgs(os.Args))
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", describeError(err))
		os.Exit(1)
	}
}

// describeError adds the cause to the error of a kind that the API server does not have.
func describeError(err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("%w; the CRDs are missing: is the controller installed?", err)
	}
	return err
}

// newRoot returns the command with all subcommands.
func newRoot() *cobra.Command { return newRootFor(&kubeCluster{}) }

func newRootFor(cluster *kubeCluster) *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-proxmox",
		Short:         "Inspect and operate Karpenter on Proxmox VE",
		SilenceUsage:  true,
		SilenceErrors: true,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl proxmox"},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&cluster.kubeconfig, "kubeconfig", "", "path of the kubeconfig (default KUBECONFIG or ~/.kube/config)")
	flags.StringVar(&cluster.context, "context", "", "context of the kubeconfig (default the current context)")
	root.AddCommand(newPreflight(cluster), newExplain(cluster), newOrphans(cluster), newFence(cluster), newRender(cluster), newHosts(cluster), newInstanceTypes(cluster), newMaintenance(cluster),
		newVersion(cluster), newPlan(cluster), newTop(cluster), newUI(cluster), newPower(cluster))
	return root
}

// kubeCluster is the Kubernetes cluster of the user's kubeconfig.
type kubeCluster struct {
	kubeconfig, context string
	// client and version replace those of the kubeconfig's API server, and proxmox configures clients, for tests.
	client  client.Client
	version string
	proxmox proxmox.Options
}

func (k *kubeCluster) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.context})
}

func (k *kubeCluster) config() (*rest.Config, error) {
	config, err := k.loader().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return config, nil
}

// namespace returns the namespace of the context, as kubectl uses it. It needs no kubeconfig.
func (k *kubeCluster) namespace() (string, error) {
	config, err := k.loader().RawConfig()
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig: %w", err)
	}
	if selected := config.Contexts[cmp.Or(k.context, config.CurrentContext)]; selected != nil && selected.Namespace != "" {
		return selected.Namespace, nil
	}
	return metav1.NamespaceDefault, nil
}

// connect returns a client and the version of the API server.
func (k *kubeCluster) connect() (client.Client, string, error) {
	kube := k.client
	if kube != nil && k.version != "" {
		return kube, k.version, nil
	}
	config, err := k.config()
	if err != nil {
		return nil, "", err
	}
	if kube == nil {
		if kube, err = client.New(config, client.Options{Scheme: scheme.Scheme}); err != nil {
			return nil, "", fmt.Errorf("creating the Kubernetes client: %w", err)
		}
	}
	server, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, "", fmt.Errorf("creating the discovery client: %w", err)
	}
	version, err := server.ServerVersion()
	if err != nil {
		return nil, "", fmt.Errorf("reading the API server's version: %w", err)
	}
	return kube, version.GitVersion, nil
}
