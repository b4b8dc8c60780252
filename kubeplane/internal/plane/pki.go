// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"net"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/kubeconfig"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"
)

// Elliptic keys: a handful of RSA keys would cost more than the start of etcd.
const keyAlgorithm = kubeadm.EncryptionAlgorithmECDSAP256

const kubeletClientUser = "kube-apiserver-kubelet-client"

var (
	forServers = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	forClients = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
)

// authority is a certificate authority that lives as long as its plane.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(dir, name string) (authority, error) {
	config := pkiutil.CertConfig{
		Config:              certutil.Config{CommonName: name},
		EncryptionAlgorithm: keyAlgorithm,
	}
	cert, key, err := pkiutil.NewCertificateAuthority(&config)
	if err != nil {
		return authority{}, fmt.Errorf("creating the certificate authority %s: %w", name, err)
	}
	if err := pkiutil.WriteCertAndKey(dir, name, cert, key); err != nil {
		return authority{}, fmt.Errorf("writing the certificate authority %s: %w", name, err)
	}
	return authority{cert: cert, key: key}, nil
}

func (a authority) sign(subject certutil.Config) (*x509.Certificate, crypto.Signer, error) {
	config := pkiutil.CertConfig{Config: subject, EncryptionAlgorithm: keyAlgorithm}
	cert, key, err := pkiutil.NewCertAndKey(a.cert, a.key, &config)
	if err != nil {
		return nil, nil, fmt.Errorf("signing the certificate of %s: %w", subject.CommonName, err)
	}
	return cert, key, nil
}

// signFiles leaves dir/name.crt and dir/name.key.
func (a authority) signFiles(dir, name string, subject certutil.Config) error {
	cert, key, err := a.sign(subject)
	if err != nil {
		return err
	}
	if err := pkiutil.WriteCertAndKey(dir, name, cert, key); err != nil {
		return fmt.Errorf("writing the certificate %s: %w", name, err)
	}
	return nil
}

// signKubeconfig leaves a kubeconfig that needs no other file.
func (a authority) signKubeconfig(file, server, user string, groups ...string) error {
	cert, key, err := a.sign(certutil.Config{CommonName: user, Organization: groups, Usages: forClients})
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encoding the key of %s: %w", user, err)
	}
	config := kubeconfig.CreateWithCerts(server, "kubeplane", user,
		pkiutil.EncodeCertPEM(a.cert), keyPEM, pkiutil.EncodeCertPEM(cert))
	if err := kubeconfig.WriteToDisk(file, config); err != nil {
		return fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return nil
}

// writeCredentials makes every key, certificate and kubeconfig that the plane and its user need.
func writeCredentials(l layout, server string, serverIPs []net.IP) error {
	ca, err := newAuthority(l.pki(), "ca")
	if err != nil {
		return err
	}
	frontProxyCA, err := newAuthority(l.pki(), "front-proxy-ca")
	if err != nil {
		return err
	}
	if err := writeServiceAccountKey(l.pki()); err != nil {
		return err
	}
	files := []struct {
		by      authority
		name    string
		subject certutil.Config
	}{
		{ca, "server", certutil.Config{CommonName: "kube-apiserver", Usages: forServers, AltNames: serverNames(serverIPs)}},
		{ca, "kubelet-client", certutil.Config{CommonName: kubeletClientUser, Usages: forClients}},
		{frontProxyCA, "front-proxy-client", certutil.Config{CommonName: "front-proxy-client", Usages: forClients}},
	}
	for _, f := range files {
		if err := f.by.signFiles(l.pki(), f.name, f.subject); err != nil {
			return err
		}
	}
	if err := ca.signKubeconfig(l.adminKubeconfig(), server, "kubernetes-admin", "system:masters"); err != nil {
		return err
	}
	for _, name := range []string{controllerManager, scheduler} {
		if err := ca.signKubeconfig(l.kubeconfig(name), server, "system:"+name); err != nil {
			return err
		}
	}
	return nil
}

func writeServiceAccountKey(dir string) error {
	key, err := pkiutil.NewPrivateKey(keyAlgorithm)
	if err != nil {
		return fmt.Errorf("creating the service account key: %w", err)
	}
	if err := pkiutil.WriteKey(dir, "sa", key); err != nil {
		return fmt.Errorf("writing the service account key: %w", err)
	}
	if err := pkiutil.WritePublicKey(dir, "sa", key.Public()); err != nil {
		return fmt.Errorf("writing the service account's public key: %w", err)
	}
	return nil
}

// serverNames are valid for all three servers: all listen on loopback, and one certificate is enough.
func serverNames(further []net.IP) certutil.AltNames {
	return certutil.AltNames{
		DNSNames: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local"},
		IPs: append([]net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)}, further...),
	}
}
