// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/karpenter/kwok/apis"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// kwokOptions are the paths of what a world with kwok needs.
type kwokOptions struct {
	// Provider is the controller of Karpenter's kwok provider, which creates Nodes.
	Provider string
	// Binary is kwok, which is the kubelet of these Nodes.
	Binary string
	// Module is the directory of kwok's module.
	Module string
}

// stages returns the files with the behavior of Nodes and pods: those of core's own runs, and what
// core uses of kwok's.
func (o worldOptions) stages() ([]string, error) {
	stages, err := filepath.Glob(filepath.Join(o.Core, "hack/kwok/stages/*.yaml"))
	for _, file := range []string{"node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-complete.yaml"} {
		stages = append(stages, filepath.Join(o.Kwok.Module, "kustomize/stage", file))
	}
	return stages, err
}

// startKwok installs the CRD of the kwok provider, and starts kwok.
func (w *world) startKwok(ctx context.Context) error {
	if err := harness.InstallCRDs(ctx, w.plane.Client, apis.CRDs...); err != nil {
		return err
	}
	stages, err := w.stages()
	if err != nil {
		return err
	}
	cmd := exec.Command(w.Kwok.Binary, "--kubeconfig="+w.plane.Kubeconfig,
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=40")
	for _, stage := range stages {
		cmd.Args = append(cmd.Args, "--config="+stage)
	}
	cmd.Env = append(os.Environ(), "HOME="+w.Dir) // it reads a configuration of the user
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := harness.RunProcess(ctx, "kwok", filepath.Join(w.Dir, "kwok.log"), cmd); ctx.Err() == nil {
			logf("kwok ended: %v", err)
		}
	}()
	w.stopKwok = func() {
		cancel()
		<-done
	}
	return nil
}

// installKwokChart installs the chart of the kwok provider.
func (w *world) installKwokChart(ctx context.Context) error {
	return w.plane.InstallChart(ctx, w.Helm, filepath.Join(w.Core, "kwok/charts"), release, map[string]any{
		"controller": map[string]any{
			"image": map[string]any{"repository": "kwok"},
			// In a container, the file of the ServiceAccount has the namespace.
			"env": []any{map[string]any{"name": "LEADER_ELECTION_NAMESPACE", "value": metav1.NamespaceSystem}},
		},
		"settings": map[string]any{"featureGates": featureGates},
	})
}
