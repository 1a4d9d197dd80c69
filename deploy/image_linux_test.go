package deploy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"debug/elf"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/stretchr/testify/require"
)

func TestProgramIsStatic(t *testing.T) {
	t.Parallel()
	file, err := elf.Open(built.binary)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	for _, segment := range file.Progs {
		require.NotEqual(t, elf.PT_INTERP, segment.Type, "it needs a dynamic linker")
	}
	libraries, err := file.ImportedLibraries()
	require.NoError(t, err)
	require.Empty(t, libraries)
}

// container is the file system of the image as a folder, for a user without rights. certificates are what the base image
// of the build has; nil leaves them out.
func container(t *testing.T, certificates []byte) string {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, copyFile(built.binary, filepath.Join(root, "termkeeper"), 0o755))
	if certificates != nil {
		bundle := filepath.Join(root, built.stages[1].Commands[0].(*instructions.CopyCommand).DestPath)
		require.NoError(t, os.MkdirAll(filepath.Dir(bundle), 0o755))
		require.NoError(t, os.WriteFile(bundle, certificates, 0o644))
	}
	for dir := root; dir != os.TempDir() && len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	return root
}

// inside runs the program of the image where nothing else is: root is all of its file system. It has no rights: root's
// tests take the user of the image, others become nobody in a user namespace of its own.
func inside(t *testing.T, root string, environ []string, args ...string) said {
	t.Helper()
	var uid, gid uint32
	_, err := fmt.Sscanf(only[*instructions.UserCommand](t).User, "%d:%d", &uid, &gid)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "/termkeeper", args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	} else {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(uid), HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(gid), HostID: os.Getgid(), Size: 1}}
	}
	return finish(t, cmd, environ)
}

func TestProgramRunsWhereNothingElseIs(t *testing.T) {
	t.Parallel()
	root := container(t, nil)
	out := inside(t, root, nil, "version")
	require.Zero(t, out.code, out.stderr)
	require.Contains(t, out.stdout, builtVersion)
	out = inside(t, root, nil, "help") // what `docker run` without a command shows
	require.Zero(t, out.code, out.stderr)
	require.Contains(t, out.stdout, "worker")
}

// The program trusts the authorities of the bundle in the image: it finds it where the Dockerfile puts it.
func TestProgramFindsTheCertificates(t *testing.T) {
	t.Parallel()
	authority, server := newAuthority(t)
	trusts := func(root string) error {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, listener.Close()) })
		handshake := make(chan error, 1)
		go func() { handshake <- greet(listener, server) }()
		out := inside(t, root, []string{"DATABASE_URL=postgres://u@" + listener.Addr().String() + "/d?sslmode=verify-full"}, "apikey", "list")
		require.NotZero(t, out.code, "it is no database")
		return <-handshake
	}
	require.NoError(t, trusts(container(t, authority)))
	require.ErrorContains(t, trusts(container(t, nil)), "certificate")
}

// greet does what a PostgreSQL server does until the connection is encrypted. The error is the client's no, if it says no.
func greet(listener net.Listener, certificate tls.Certificate) error {
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil { // "may I use TLS?"
		return err
	}
	if _, err := conn.Write([]byte("S")); err != nil {
		return err
	}
	encrypted := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})
	// In TLS 1.3 the server's part is done before the client has looked at the certificate: its first words tell.
	_, err = encrypted.Read(make([]byte, 1))
	return err
}

func newAuthority(t *testing.T) (bundle []byte, server tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority of the tests"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
