// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv is the environment of tests. Env has a simulated Proxmox, an inventory
// and the operations on VMs of one test, and either objects in a real Kubernetes API
// server, shared by the tests of one binary (New), or a fake API (NewFake). Its methods
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
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
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

// shared is the API server; it starts with the first test that needs it.
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
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, errNoAssets
	}
	definitions, err := crds.All()
	if err != nil {
		return nil, err
	}
	// The default of 20 seconds is too short on a machine that compiles at the same time.
	env := &envtest.Environment{CRDs: definitions, ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: 2 * time.Minute}
	// Service accounts are created by a controller that does not run here.
	env.ControlPlane.GetAPIServer().Configure().Append("disable-admission-plugins", "ServiceAccount")
	config, err := env.Start()
	if err != nil {
		return nil, fmt.Errorf("starting the API server: %w", err)
	}
	shared = env
	config.QPS, config.Burst = 1000, 2000
	return config, nil
}
