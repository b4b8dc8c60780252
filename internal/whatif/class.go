// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate"
)

// checkClasses sets the status of the classes that the change affects: those that it
// contains, those whose template it contains, and all of them if it changes Hosts.
func (p *planner) checkClasses() error {
	changed := map[string]bool{}
	for _, object := range p.change.Objects {
		switch o := object.(type) {
		case *v1alpha1.ProxmoxNodeClass:
			changed[v1alpha1.ProxmoxNodeClassKind+"/"+o.Name] = true
		case *v1alpha1.ProxmoxUnmanagedTemplate:
			changed[v1alpha1.ProxmoxUnmanagedTemplateKind+"/"+o.Name] = true
			if err := p.resolveTemplate(o.Name); err != nil {
				return err
			}
		}
	}
	classes := &v1alpha1.ProxmoxNodeClassList{}
	if err := p.kube.List(p.ctx, classes); err != nil {
		return err
	}
	hosts := len(p.change.LostHosts) > 0 || p.change.HostSettings != nil
	for i := range classes.Items {
		class := &classes.Items[i]
		ref := class.Spec.InstanceTemplateRef
		isChanged := changed[v1alpha1.ProxmoxNodeClassKind+"/"+class.Name]
		p.affected[class.Name] = isChanged || changed[ref.Kind+"/"+ref.Name]
		if !p.affected[class.Name] && !hosts {
			continue
		}
		if err := p.checkClass(class, isChanged); err != nil {
			return fmt.Errorf("checking ProxmoxNodeClass %s: %w", class.Name, err)
		}
	}
	return nil
}

// resolveTemplate sets the status of a changed ProxmoxUnmanagedTemplate.
func (p *planner) resolveTemplate(name string) error {
	template := &v1alpha1.ProxmoxUnmanagedTemplate{}
	if err := p.kube.Get(p.ctx, client.ObjectKey{Name: name}, template); err != nil {
		return err
	}
	unmanagedtemplate.Resolve(p.inventory, template)
	return p.kube.Update(p.ctx, template)
}

// checkClass sets the status of a class as the controller would, and adds a note if the class
// would not be ready, or if its boot data was not checked. A class that is not changed keeps
// the result of its last check of boot data.
func (p *planner) checkClass(class *v1alpha1.ProxmoxNodeClass, isChanged bool) error {
	stored, secrets := class.DeepCopy(), p.secrets
	wasReady := class.StatusConditions().Get(status.ConditionReady).IsTrue()
	unchecked := isChanged && secrets.Reader == nil
	if unchecked {
		class.StatusConditions().SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
	}
	if !isChanged {
		secrets.Reader = nil
	}
	checker := nodeclass.NewChecker(p.kube, nodeclass.Deps{
		Inventory: p.inventory, Types: p.types, Boot: secrets, RootClients: p.roots, Health: p.vms.Health, Clock: clock.RealClock{},
	})
	if err := checker.Check(p.ctx, class); err != nil {
		return err
	}
	if err := p.kube.Status().Patch(p.ctx, class, client.MergeFrom(stored)); err != nil {
		return err
	}
	ready := class.StatusConditions().Get(status.ConditionReady)
	switch {
	case !ready.IsTrue() && (isChanged || wasReady):
		p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("ProxmoxNodeClass %s would not be ready: %s", class.Name, ready.Message))
	case unchecked:
		p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("boot data of ProxmoxNodeClass %s was not checked: %v", class.Name, errNoSecrets))
	}
	return nil
}
