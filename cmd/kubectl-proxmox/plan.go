// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/whatif"
)

// planner predicts what Karpenter does after a change.
type planner struct {
	from      *clusters
	cluster   *kubeCluster
	format    output
	manifests []string
	lostHosts []string
	settings  string
	save      string
	inventory string
}

func newPlan(cluster *kubeCluster) *cobra.Command {
	p := &planner{from: &clusters{}, cluster: cluster}
	command := &cobra.Command{
		Use:   "plan",
		Short: "Show which VMs Karpenter would create after a change",
		Long: `Show which VMs Karpenter would create after a change, on which hosts, which pods would not
fit and why, and the price per hour before and after. Nothing is changed.

The change can be additional workloads, changed NodePools, ProxmoxNodeClasses and templates
(-f), lost hosts (--lose-host) and other host settings, for example for overcommitment
(--new-node-setting-file). Several changes are planned together. Without a change, the plan
is for the pods that are pending now, and for the missing nodes of static NodePools.

The plan runs Karpenter's scheduler and the placement of this provider on the current
objects and hosts, or on those of a file that --save wrote.`,
		Example: `  # is there capacity for this Deployment?
  kubectl proxmox plan -f deployment.yaml

  # do the pods fit if this host fails?
  kubectl proxmox plan --lose-host home/pve1

  # what does a changed class replace?
  kubectl proxmox plan -f nodeclass.yaml

  # save the inventory, and plan later without access to the clusters
  kubectl proxmox plan --save inventory.json
  kubectl proxmox plan --inventory inventory.json -f deployment.yaml`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return p.run(command.Context(), command.OutOrStdout())
		},
	}
	flags := command.Flags()
	flags.StringSliceVarP(&p.manifests, "filename", "f", nil, "manifests to plan: files, or directories of YAML files")
	flags.StringSliceVar(&p.lostHosts, "lose-host", nil, "REGION/HOST of a host that fails")
	flags.StringVar(&p.settings, "new-node-setting-file", "", "path of a file with host settings that replace the current ones")
	flags.StringVar(&p.save, "save", "", "write the current objects and hosts to this file, without credentials")
	flags.StringVar(&p.inventory, "inventory", "", "plan on the objects and hosts of this file, which --save wrote")
	command.MarkFlagsMutuallyExclusive("save", "inventory")
	p.from.flagsOr(cluster, command)
	p.format.flags(command)
	return command
}

func (p *planner) run(ctx context.Context, out io.Writer) error {
	change, err := p.change()
	if err != nil {
		return err
	}
	state, err := p.state(ctx, change)
	if err != nil {
		return err
	}
	if p.save != "" {
		if err := state.Save(p.save); err != nil {
			return err
		}
		if len(p.manifests) == 0 && len(p.lostHosts) == 0 && p.settings == "" {
			_, err := fmt.Fprintf(out, "saved the inventory to %s\n", p.save)
			return err
		}
	}
	plan, err := state.Plan(ctx, change)
	if err != nil {
		return err
	}
	return p.format.print(out, plan, func(out io.Writer) error { return printPlan(out, plan) })
}

// change returns the change of the flags.
func (p *planner) change() (whatif.Change, error) {
	var change whatif.Change
	objects, err := readManifests(p.manifests, "")
	if err != nil {
		return change, err
	}
	change.Objects = objects.objects
	namespace, err := p.cluster.namespace()
	if err != nil {
		return change, err
	}
	setNamespace(change.Objects, namespace)
	for _, arg := range p.lostHosts {
		host, err := parseHost(arg)
		if err != nil {
			return change, fmt.Errorf("--lose-host: %w", err)
		}
		change.LostHosts = append(change.LostHosts, host)
	}
	if p.settings != "" {
		settings, err := declared.LoadSettings(p.settings)
		if err != nil {
			return change, err
		}
		change.HostSettings = &settings
	}
	return change, nil
}

// setNamespace sets the namespace of objects that have none. Other kinds without a namespace do
// not affect a plan.
func setNamespace(objects []client.Object, namespace string) {
	for _, object := range objects {
		switch object.(type) {
		case *karpv1.NodePool, *karpv1alpha1.NodeOverlay, *v1alpha1.ProxmoxNodeClass, *v1alpha1.ProxmoxTemplate, *v1alpha1.ProxmoxUnmanagedTemplate:
			continue
		}
		object.SetNamespace(cmp.Or(object.GetNamespace(), namespace))
	}
}

// state returns the saved state, or the current one.
func (p *planner) state(ctx context.Context, change whatif.Change) (*whatif.State, error) {
	if p.inventory != "" {
		return whatif.Load(p.inventory)
	}
	kube, version, err := p.cluster.connect()
	if err != nil {
		return nil, err
	}
	controller, err := p.controller(ctx)
	if err != nil {
		return nil, err
	}
	view, err := p.from.read(ctx)
	if err != nil {
		return nil, err
	}
	if err := view.readHostStates(ctx, kube); err != nil {
		return nil, err
	}
	namespace := view.settings.Options.SystemNamespace
	objects, err := whatif.ReadObjects(ctx, kube, namespace)
	if err != nil {
		return nil, err
	}
	id, err := clusterID(ctx, kube)
	if err != nil {
		return nil, err
	}
	source := boot.Source{Reader: kube, Namespace: namespace, Version: boot.FixedVersion(version)}
	if err := view.readFacts(ctx, kube, source, append(slices.Clone(objects), change.Objects...)); err != nil {
		return nil, err
	}
	return &whatif.State{
		Controller: controller, KubeCluster: id, Roots: slices.Sorted(maps.Keys(view.roots)), Snapshots: view.inventory.View().Snapshots, Objects: objects, Secrets: kube,
	}, nil
}

// controller returns the controller whose settings the plan uses.
func (p *planner) controller(ctx context.Context) (operator.Deployed, error) {
	controller := operator.Deployed{ReadFile: os.ReadFile}
	if p.from.cloudConfig == "" && p.from.values == "" {
		var err error
		if controller, err = p.from.deployed(ctx); err != nil {
			return controller, err
		}
	}
	if local := p.from.nodeSettings; local != "" {
		readFile := controller.ReadFile
		controller.Args = append(slices.Clone(controller.Args), "--node-setting-file="+local)
		controller.ReadFile = func(file string) ([]byte, error) {
			if file == local {
				return os.ReadFile(local) //nolint:gosec // a file that the user names
			}
			return readFile(file)
		}
	}
	return controller, nil
}

// readFacts reads what the checks of NodeClasses need: the first check determines it.
func (v *view) readFacts(ctx context.Context, kube client.Client, source boot.Source, objects []client.Object) error {
	vms, types, err := v.operations(kube, source, "")
	if err != nil {
		return err
	}
	checker := nodeclass.NewChecker(kube, nodeclass.Deps{
		Inventory: v.inventory, Types: types, Boot: source, Health: vms.Health, Clock: clock.RealClock{},
	})
	for _, object := range objects {
		class, ok := object.(*v1alpha1.ProxmoxNodeClass)
		if !ok {
			continue
		}
		if class.Spec.Network != nil {
			v.inventory.WatchAddresses()
		}
		if err := checker.Check(ctx, class.DeepCopy()); err != nil {
			return fmt.Errorf("checking ProxmoxNodeClass %s: %w", class.Name, err)
		}
	}
	return v.inventory.RefreshAll(ctx)
}
