// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	region    = "home"
	namespace = corev1.NamespaceDefault
	poolName  = "demo"
	hosts     = 3

	// Short times, so that the death of a host is worth watching. Production
	// clusters wait 50 seconds and five minutes.
	heartbeat   = 2 * time.Second
	gracePeriod = 10 * time.Second
	toleration  = 5 // seconds
	pollProxmox = 2 * time.Second
	// A VM's kernel takes ten seconds or more; this is enough to see it boot.
	bootTime = 2 * time.Second

	classPatience = 45 * time.Second
)

// Stage is the whole world, running.
type Stage struct {
	Dir        string
	Plane      *harness.Plane
	Proxmox    *harness.Proxmox
	Controller *harness.Controller
	Kit        *harness.Kit
	// Before is what Proxmox held when the curtain rose.
	Before harness.Holdings
}

// setUp brings everything up; say gets a line before each part.
func setUp(ctx context.Context, o options, say func(string)) (*Stage, error) {
	s := &Stage{Dir: o.dir}
	err := s.build(ctx, o, say)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Stage) build(ctx context.Context, o options, say func(string)) (err error) {
	say("a Kubernetes control plane: etcd, API server, controller manager, scheduler")
	s.Plane, err = harness.StartPlane(ctx, harness.PlaneOptions{
		Binary: o.kubeplane, Dir: filepath.Join(o.dir, "kubernetes"), NodeMonitorGracePeriod: gracePeriod,
	})
	if err != nil {
		return err
	}
	if err := harness.InstallCRDs(ctx, s.Plane.Client); err != nil {
		return err
	}
	say(fmt.Sprintf("a Proxmox VE cluster of %d hosts, simulated, with other people's guests on it", hosts))
	s.Proxmox, err = harness.StartProxmox(ctx, harness.ProxmoxOptions{Hosts: hosts, Speed: o.speed, Heartbeat: heartbeat, BootTime: bootTime, Admin: o.playground})
	if err != nil {
		return err
	}
	if s.Before, err = s.Proxmox.API.Holdings(ctx); err != nil {
		return err
	}
	say("the controller")
	s.Controller, err = harness.NewController(harness.ControllerOptions{
		Binary: o.controller, Dir: filepath.Join(o.dir, "controller"), Kubeconfig: s.Plane.Kubeconfig,
		Clusters: []harness.Cluster{s.Proxmox.Cluster(region)}, PollInterval: pollProxmox,
	})
	if err != nil {
		return err
	}
	if err := s.Controller.Start(ctx); err != nil {
		return err
	}
	say("a NodeClass and a NodePool, as in examples/kubeadm")
	if s.Kit, err = harness.NewKit(poolName, s.Plane.Server); err != nil {
		return err
	}
	stagePool(s.Kit.Pool)
	if err := s.Kit.Apply(ctx, s.Plane.Client); err != nil {
		return err
	}
	return s.classReady(ctx)
}

// stagePool makes VMs small enough that there are several to watch, and keeps
// Karpenter from tidying up before the tour says so.
func stagePool(pool *karpv1.NodePool) {
	pool.Spec.Template.Spec.Requirements = append(pool.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
		Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn,
		Values: []string{"c1.2VCPU-4GB", "s1.2VCPU-8GB", "c1.4VCPU-8GB", "s1.4VCPU-16GB"},
	})
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
	// The default lets go of one node in ten at a time: right for production,
	// long to watch.
	pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
}

func (s *Stage) classReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, classPatience)
	defer cancel()
	class := &v1alpha1.ProxmoxNodeClass{}
	for {
		err := s.Plane.Client.Get(ctx, client.ObjectKey{Name: poolName}, class)
		if err == nil && class.StatusConditions().Root().IsTrue() {
			return nil
		}
		select {
		case <-s.Controller.Done():
			return s.Controller.ExitError()
		case <-ctx.Done():
			return fmt.Errorf("waiting for nodeclass %s to be Ready: %s", poolName, class.StatusConditions().Root().Message)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ended tells when a part ends that should not.
func (s *Stage) ended(ctx context.Context) error {
	select {
	case <-s.Controller.Done():
		return s.Controller.ExitError()
	case <-s.Plane.Done():
		return s.Plane.ExitError()
	case <-ctx.Done():
		return nil
	}
}

// Close ends everything, the last first.
func (s *Stage) Close() {
	if s.Controller != nil {
		s.Controller.Stop()
	}
	if s.Proxmox != nil {
		_ = s.Proxmox.WriteRequests(filepath.Join(s.Dir, "proxmox-requests.log")) // a log that is missing hurts nobody
		s.Proxmox.Close()
	}
	if s.Plane != nil {
		s.Plane.Stop()
	}
}

// observer of this stage.
func (s *Stage) observer() *observer {
	o := &observer{kube: s.Plane.Client, api: s.Proxmox.API, foreign: map[int]bool{}, cpus: s.Proxmox.CPUs()}
	for _, guest := range s.Before.Guests {
		o.foreign[guest.VMID] = true
	}
	return o
}

// findBinary makes a good message of a binary that was not built.
func findBinary(flag, path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("--%s: there is no %s; make demo builds it", flag, path)
	}
	return filepath.Abs(path)
}
