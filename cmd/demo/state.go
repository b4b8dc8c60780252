// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// State is the state of Kubernetes and Proxmox at one moment.
type State struct {
	fleet.Map
	// Pods of the demo's Deployments.
	Pods []Pod
}

// Pod is a pod of one of the demo's Deployments.
type Pod struct {
	fleet.Pod
	Host string
}

// observer reads the state of Kubernetes and Proxmox.
type observer struct {
	kube        client.Client
	inventory   *inventory.Inventory
	kubeCluster string
}

// newObserver returns an observer of a Proxmox cluster with its own connection.
func newObserver(ctx context.Context, kube client.Client, cluster harness.Cluster) (*observer, error) {
	content, err := yaml.Marshal(map[string]any{"clusters": []harness.Cluster{cluster}})
	if err != nil {
		return nil, fmt.Errorf("writing the cloud config: %w", err)
	}
	config, err := proxmox.ParseConfig(content)
	if err != nil {
		return nil, err
	}
	connection, err := proxmox.New(config.Clusters[0], proxmox.Options{})
	if err != nil {
		return nil, err
	}
	o := &observer{kube: kube}
	if o.inventory, err = inventory.New([]proxmox.Client{connection}, inventory.Options{}); err != nil {
		return nil, err
	}
	system := &corev1.Namespace{}
	if err := kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return nil, fmt.Errorf("reading namespace: %w", err)
	}
	o.kubeCluster = string(system.UID)
	return o, nil
}

// observe reads the current state.
func (o *observer) observe(ctx context.Context) (State, error) {
	if err := o.inventory.RefreshAll(ctx); err != nil {
		return State{}, fmt.Errorf("reading Proxmox: %w", err)
	}
	objects, err := fleet.ReadObjects(ctx, o.kube, o.kube)
	if err != nil {
		return State{}, err
	}
	s := State{Map: fleet.Build(fleet.Input{
		View: o.inventory.View(), Objects: objects, KubeCluster: o.kubeCluster, Pricing: operator.DefaultOptions().Pricing(), Now: time.Now(),
	})}
	s.Pods = demoPods(objects.Pods, s.VMs)
	return s, nil
}

func demoPods(pods []corev1.Pod, vms []fleet.VM) []Pod {
	hosts := map[string]string{}
	for _, vm := range vms {
		hosts[vm.Node] = vm.Host
	}
	var out []Pod
	for i := range pods {
		if pods[i].Namespace == namespace {
			out = append(out, Pod{Pod: fleet.NewPod(&pods[i]), Host: hosts[pods[i].Spec.NodeName]})
		}
	}
	slices.SortFunc(out, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// of returns the pods of a Deployment that are not being deleted.
func (s State) of(app string) []Pod {
	return slices.DeleteFunc(slices.Clone(s.Pods), func(p Pod) bool { return p.App != app || p.Deleting })
}

// ready returns the number of an app's ready pods.
func (s State) ready(app string) int {
	n := 0
	for _, pod := range s.of(app) {
		if pod.Ready {
			n++
		}
	}
	return n
}

// all reports whether every VM is in one of the phases.
func (s State) all(phases ...fleet.Phase) bool {
	return !slices.ContainsFunc(s.VMs, func(vm fleet.VM) bool { return !slices.Contains(phases, vm.Phase) })
}

// describe returns the phases of all VMs and which pods are not ready.
func (s State) describe() string {
	var out []string
	for _, vm := range s.VMs {
		out = append(out, fmt.Sprintf("VM %d is %s", vm.VMID, vm.Phase))
	}
	for _, pod := range s.Pods {
		switch {
		case pod.Deleting:
			out = append(out, "pod "+pod.Name+" is being deleted")
		case !pod.Ready:
			out = append(out, fmt.Sprintf("pod %s is not ready (%s)", pod.Name, pod.Reason))
		}
	}
	if len(out) == 0 {
		return "there are no VMs and no pods"
	}
	return strings.Join(out, ", ")
}
