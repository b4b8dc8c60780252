// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv is the environment of tests. Env has a simulated Proxmox, an inventory and
// the operations on VMs of one test. Most tests run in virtual time (Simulated, New, NewFake),
// with a fake Kubernetes API. Those that show what an API server does have objects in a real one,
// which all tests share, and an accelerated clock (NewWithAPIServer). Methods of Env create test
// objects. Tests with their own environment use its parts: StartSimulator, NewComponents and
// the builders. Only tests import it.
package testenv

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv/apiserver"
)

// Karpenter finds the kind of a NodeClass in the scheme of client-go.
func init() {
	_ = v1alpha1.AddToScheme(scheme.Scheme)
	// Logs about injected faults would hide the test output.
	log.SetLogger(logr.Discard())
	// Controllers wait for an API server on a busy machine.
	gomega.SetDefaultEventuallyTimeout(time.Minute)
}

var errNoAssets = errors.New("KUBEBUILDER_ASSETS is not set: there is no API server, so this is skipped; run \"make unit\"")

// own is the API server of this package; nil if no test needs it.
var own *envtest.Environment

var (
	ownConfig    = sync.OnceValues(startServer)
	sharedConfig = sync.OnceValues(func() (*rest.Config, error) {
		kubeconfig := os.Getenv(apiserver.KubeconfigVariable)
		if kubeconfig == "" {
			return ownConfig()
		}
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", apiserver.KubeconfigVariable, err)
		}
		return withoutLimit(config), nil
	})
)

// Run runs a package's tests and stops the package's API server. TestMain calls it.
func Run(m *testing.M) int {
	code := m.Run()
	if own != nil {
		if err := own.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the API server:", err)
		}
	}
	return code
}

// APIServer returns the package's API server. Without KUBEBUILDER_ASSETS it skips the test.
func APIServer(t *testing.T) *rest.Config {
	t.Helper()
	return orSkip(t, ownConfig)
}

// sharedServer returns an API server that may have objects of other packages.
func sharedServer(t *testing.T) *rest.Config {
	t.Helper()
	return orSkip(t, sharedConfig)
}

func orSkip(t *testing.T, start func() (*rest.Config, error)) *rest.Config {
	t.Helper()
	config, err := start()
	if errors.Is(err, errNoAssets) {
		t.Skip(err)
	}
	Must(t, err)
	return rest.CopyConfig(config)
}

func startServer() (*rest.Config, error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, errNoAssets
	}
	env, err := apiserver.Start()
	if err != nil {
		return nil, err
	}
	own = env
	return withoutLimit(env.Config), nil
}

// withoutLimit raises the limit of requests per second.
func withoutLimit(config *rest.Config) *rest.Config {
	config.QPS, config.Burst = 1000, 2000
	return config
}
