// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver starts the Kubernetes API server of tests.
package apiserver

import (
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
)

// KubeconfigVariable is the environment variable with the kubeconfig of an API server that
// already runs. Tests that isolate their objects share it, because each start takes seconds.
const KubeconfigVariable = "TEST_KUBECONFIG"

const (
	// timeout is the limit for the start, the stop and the CRDs of an API server.
	timeout = 2 * time.Minute
	// attempts is how often a start is tried: the default namespace must exist within five
	// seconds, which cannot be configured.
	attempts = 3
)

// Start starts an API server with the CRDs, from the binaries in KUBEBUILDER_ASSETS. The caller
// stops it.
func Start() (*envtest.Environment, error) {
	definitions, err := crds.All()
	if err != nil {
		return nil, err
	}
	for range attempts {
		// The defaults are too short on a machine that compiles at the same time.
		env := &envtest.Environment{
			CRDs: definitions, ErrorIfCRDPathMissing: true, CRDInstallOptions: envtest.CRDInstallOptions{MaxTime: timeout},
			ControlPlaneStartTimeout: timeout, ControlPlaneStopTimeout: timeout,
		}
		// Service accounts are created by a controller that does not run here.
		env.ControlPlane.GetAPIServer().Configure().Append("disable-admission-plugins", "ServiceAccount")
		if _, err = env.Start(); err == nil {
			return env, nil
		}
		err = errors.Join(fmt.Errorf("starting the API server: %w", err), env.Stop())
	}
	return nil, err
}
