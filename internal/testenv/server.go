// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv is the environment of tests. Env has a simulated Proxmox, an inventory
// and the operations on VMs of one test, and either objects in a real Kubernetes API
// server, which tests share (New), or a fake API (NewFake). Its methods
// create test objects. Tests with their own environment use its parts: the accelerated
// Clock, StartSimulator, NewComponents and the builders. Only tests import it.
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

// shared is the API server that starts with the first test that needs it; nil if the packages
// share one.
var shared *envtest.Environment

var sharedConfig = sync.OnceValues(startServer)

// Run runs a package's tests and stops the shared API server. TestMain calls it.
func Run(m *testing.M) int {
	code := m.Run()
	if shared != nil {
		if err := shared.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the API server:", err)
		}
	}
	return code
}

// APIServer returns the shared API server. Without KUBEBUILDER_ASSETS it skips the test.
func APIServer(t *testing.T) *rest.Config {
	t.Helper()
	config, err := sharedConfig()
	if errors.Is(err, errNoAssets) {
		t.Skip(err)
	}
	Must(t, err)
	return rest.CopyConfig(config)
}

func startServer() (*rest.Config, error) {
	if kubeconfig := os.Getenv(apiserver.KubeconfigVariable); kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		return withoutLimit(config), err
	}
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, errNoAssets
	}
	env, err := apiserver.Start()
	if err != nil {
		return nil, err
	}
	shared = env
	return withoutLimit(env.Config), nil
}

// withoutLimit raises the limit of requests per second.
func withoutLimit(config *rest.Config) *rest.Config {
	if config != nil {
		config.QPS, config.Burst = 1000, 2000
	}
	return config
}
