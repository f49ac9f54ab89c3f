/* sanitized.h - TN_ASAN is defined where this is compiled for AddressSanitizer. */
#ifndef TN_SANITIZED_H
#define TN_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) /* gcc; headers of its may define __has_feature as 0 */
#define TN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TN_ASAN 1
#endif
#endif

#endif
