// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Kubeplane is a real Kubernetes control plane as one binary, for tests and demonstrations: no container, no download,
// no root. It is etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl, by the name it is called
// with, and `kubeplane up` runs the first four of them together. See README.md.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/component-base/version"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/kubeplane/internal/plane"
)

func main() {
	if program := chosenProgram(); program != nil {
		os.Exit(program())
	}
	// Kubernetes registers flags for the whole process, --version among them, and cobra would take them for ours.
	pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ContinueOnError)
	command := plane.NewCommand(plane.Binary{
		Programs:          slices.Sorted(maps.Keys(programs)),
		CheckFeatureGates: checkFeatureGates,
		Version:           version.Get().GitVersion,
	})
	if err := command.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "kubeplane: %v\n", err)
		os.Exit(1)
	}
}

// chosenProgram returns the upstream program that the command line selects, or nil for kubeplane itself.
// It leaves os.Args as that program expects them.
func chosenProgram() func() int {
	if program, ok := programs[filepath.Base(os.Args[0])]; ok {
		return program
	}
	if len(os.Args) < 2 {
		return nil
	}
	program, ok := programs[os.Args[1]]
	if ok {
		os.Args = os.Args[1:]
	}
	return program
}
