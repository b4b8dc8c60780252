// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv is what tests of controllers and cloud provider stand on: a
// real Kubernetes API server with our CRDs and Karpenter's, shared by the tests of
// one binary, and for each test its own simulated Proxmox, inventory and
// providers. It is imported by tests only.
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

// Karpenter finds the kind of a NodeClass through the scheme of client-go.
func init() {
	_ = v1alpha1.AddToScheme(scheme.Scheme)
	// Whoever waits for a controller here waits for an API server on a busy machine.
	gomega.SetDefaultEventuallyTimeout(time.Minute)
}

var errNoAssets = errors.New("KUBEBUILDER_ASSETS is not set: no API server, so NOTHING is checked here. Run \"make unit\"")

// shared starts when the first test asks for it: a run that asks for none is quick.
var shared struct {
	once   sync.Once
	env    *envtest.Environment
	config *rest.Config
	err    error
}

// Run runs a package's tests and stops the API server that they shared. TestMain
// calls it.
func Run(m *testing.M) int {
	log.SetLogger(logr.Discard())
	code := m.Run()
	if shared.env != nil {
		if err := shared.env.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the API server:", err)
		}
	}
	return code
}

// APIServer gives the shared API server, or skips the test loudly where there is none.
func APIServer(t *testing.T) *rest.Config {
	t.Helper()
	shared.once.Do(func() { shared.config, shared.err = startServer() })
	if errors.Is(shared.err, errNoAssets) {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return rest.CopyConfig(shared.config)
}

func startServer() (*rest.Config, error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return nil, errNoAssets
	}
	definitions, err := crds.All()
	if err != nil {
		return nil, err
	}
	env := &envtest.Environment{CRDs: definitions, ErrorIfCRDPathMissing: true}
	// Workloads' service accounts are made by a controller that does not run here.
	env.ControlPlane.GetAPIServer().Configure().Append("disable-admission-plugins", "ServiceAccount")
	config, err := env.Start()
	if err != nil {
		return nil, fmt.Errorf("starting the API server, %w", err)
	}
	shared.env = env
	config.QPS, config.Burst = 1000, 2000
	return config, nil
}
